"""Sends gradients during an eager backward pass, from per-gradient hooks."""

import threading
from collections.abc import Callable, Sequence

from easyscale.backend.base import BackwardPass
from easyscale.communicator.data_axis import everyone_of
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Variable
from easyscale.step.context import Gradient, StepContext, Tensor
from easyscale.step.plan import Kind, Reduced, StepArrays, flat, like
from easyscale.step.reduce_config import ReduceConfig
from easyscale.step.reducer import Reducer
from easyscale.step.shared import Shared

__all__ = ["EarlyGradients", "ReadyBuckets"]


class EarlyGradients:
    """Sends the gradients of one optimizer during the backward pass, in the steps in which that helps.

    Such a step must make the same update as the previous one.

    Args:
        config: The `ReduceConfig`: exchange, bucket size and compression.
        shared: The `Shared` of its communicator.
        reducer_of: Function. See `Gradients.reducer_of`.
    """

    def __init__(self, config: ReduceConfig, shared: Shared, reducer_of: Callable[..., Reducer]):
        self._config, self._shared, self._reducer_of = config, shared, reducer_of
        self._update: tuple[Sequence[Variable], Shards | None] | None = None
        self._ready: ReadyBuckets | None = None

    def remember(self, variables: Sequence[Variable], shards: Shards | None) -> None:
        """Expect an update by the mean gradients of these variables in each step from now on."""
        self._update = variables, shards

    def forget(self) -> None:
        """Expect no particular update: the next may be different, or accumulate gradients before sending them."""
        self._update = None

    def expect(self, context: StepContext, loss: Tensor) -> None:
        """Prepare to send the gradients of `loss`, whose backward pass is next, as they become ready."""
        self.expect_none()
        backward, exchange = self._shared.backend.backward_pass, self._config.exchange
        is_alone = everyone_of(exchange.communicator).size == 1
        in_one = self._config.choice is None or self._config.bucket_bytes is None or exchange.on_gpus
        if backward is None or self._update is None or is_alone or in_one or self._shared.call.rehearses:
            return
        variables, shards = self._update
        dense = [index for index, is_reached in enumerate(backward.reached(loss, variables)) if is_reached]
        if not dense:
            return
        tensors: list[Gradient] = [None] * len(variables)
        for index in dense:
            tensors[index] = self._shared.backend.tensors.whole(variables[index])  # of the gradient's dtype
        expected = self._reducer_of(context, tensors, variables, shards=shards)
        if expected.overlaps:
            self._ready = ReadyBuckets(expected, self._shared, backward, context)

    def take(self) -> "ReadyBuckets | None":
        """Return this step's buckets, the last of which are being sent now; `None` if it has not sent any."""
        ready, self._ready = self._ready, None
        return ready

    def expect_none(self) -> None:
        """End the step, perhaps after an error: gradients of a later backward pass are not sent."""
        if (ready := self.take()) is not None:
            ready.close()


class ReadyBuckets:
    """The buckets of one step, each of which is sent when all its gradients are ready.

        this thread     loss | backward pass: ... gradient 9, 8 | 7, 6, 5 | 4 ... 0 | finish | update
        thread beside        | agree                            | bucket 2          | bucket 1, bucket 0

    A rank sends the same messages, in the same order, as when the `Reducer` is called after the backward pass, so ranks
    that do and do not know their gradients in advance can be mixed. The cost is a traversal of the autograd graph
    before the backward pass, and a Python call per gradient.

    Args:
        reducer: The `Reducer` of the expected gradients, which overlaps.
        shared: The `Shared` of the communicator.
        backward: The backend's `BackwardPass`.
        context: `StepContext`.

    Reference: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", 2020, section 3.2.
    """

    def __init__(self, reducer: Reducer, shared: Shared, backward: BackwardPass, context: StepContext):
        self._reducer, self._shared, self._backward = reducer, shared, backward
        self._summed: list[Gradient] = [None] * len(reducer.plan.of(Kind.DENSE))
        self._summed += [shared.backend.tensors.whole(variable) for variable in context.moving]
        self._left = len(reducer.vectors)  # the number of vectors still to be sent
        self._gradient_comes = threading.Lock()  # a framework may have a thread per device
        if context.came is not None:
            shared.timeline.came(context.came)
        known = StepArrays(context.weight, list(context.losses), list(context.data), due=())
        copies = backward.copies(flat(known))
        reducer.start(lambda: like(known, copies()))
        self.close = backward.watch(dict(enumerate(reducer.variables)), self._take)

    def _take(self, position: int, gradient: Gradient) -> None:
        with self._gradient_comes:
            self._summed[position] = gradient
            while self._left and self._is_there(self._left - 1):
                self._left -= 1
                selected = self._reducer.vectors[self._left].select(self._summed)
                self._reducer.send(self._left, self._backward.copies(selected))

    def _is_there(self, number: int) -> bool:
        return all(one is not None for one in self._reducer.vectors[number].select(self._summed))

    def finish(self, reducer: Reducer, step: StepArrays) -> Reduced:
        """Return the means of this step, as a call of the `Reducer` would.

        Raises:
            ValueError: If its gradients are not those that have been sent.
        """
        self.close()
        reduced = (
            None if self._left else self._reducer.finish(StepArrays(0.0))
        )  # even before an error: the other ranks wait for it
        dense = len(self._reducer.plan.of(Kind.DENSE))
        made = zip(self._summed[:dense], step.summed, strict=False)
        if reducer is not self._reducer or reduced is None or any(sent is not tensor for sent, tensor in made):
            raise ValueError(
                "the optimizer must be given the gradients that the backward pass of `fit()` makes, which have left "
                "when it ends. Received: others. Write a `train_step` of your own, whose gradients leave behind it"
            )
        return reduced
