"""Gradients that leave while a backward pass makes them, where that is no graph which has calls in it."""

import threading
from collections.abc import Callable, Sequence

from easyscale.backend.base import BackwardPass
from easyscale.communicator.data_axis import everyone_of
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Variable
from easyscale.step.context import Gradient, StepContext, Tensor
from easyscale.step.plan import Kind, Reduced, StepArrays, flat, like
from easyscale.step.reducer import Reducer
from easyscale.step.shared import Shared
from easyscale.step.way import Way

__all__ = ["EarlyGradients", "ReadyBuckets"]


class EarlyGradients:
    """Lets the gradients of one optimizer leave while the backward pass goes on, in the steps in which that gains.

    Such a step makes the update that the one before has made.

    Args:
        way: The `Way` on which they travel.
        shared: The `Shared` of its communicator.
        reducer_of: Function. See `Gradients.reducer_of`.
    """

    def __init__(self, way: Way, shared: Shared, reducer_of: Callable[..., Reducer]):
        self._way, self._shared, self._reducer_of = way, shared, reducer_of
        self._update: tuple[Sequence[Variable], Shards | None] | None = None
        self._ready: ReadyBuckets | None = None

    def remember(self, variables: Sequence[Variable], shards: Shards | None) -> None:
        """Take in that an update has the means of gradients by these variables, in each step from now on."""
        self._update = variables, shards

    def forget(self) -> None:
        """Take in that another update may come, or one that sums gradients up before they leave."""
        self._update = None

    def expect(self, context: StepContext, loss: Tensor) -> None:
        """Let the gradients of `loss`, whose backward pass is next, leave when they have been made."""
        self.expect_none()
        backward, exchange = self._shared.backend.backward_pass, self._way.exchange
        is_alone = everyone_of(exchange.communicator).size == 1
        in_one = self._way.choice is None or self._way.bucket_bytes is None or exchange.on_gpus
        if backward is None or self._update is None or is_alone or in_one or self._shared.call.rehearses:
            return
        variables, shards = self._update
        dense = [index for index, is_reached in enumerate(backward.reached(loss, variables)) if is_reached]
        if not dense:
            return
        tensors: list[Gradient] = [None] * len(variables)
        for index in dense:
            tensors[index] = self._shared.backend.tensors.whole(variables[index])  # which has the dtype of its gradient
        expected = self._reducer_of(context, tensors, variables, shards=shards)
        if expected.overlaps:
            self._ready = ReadyBuckets(expected, self._shared, backward, context)

    def take(self) -> "ReadyBuckets | None":
        """Return the buckets of this step, of which the last leave now; `None` if none has left."""
        ready, self._ready = self._ready, None
        return ready

    def expect_none(self) -> None:
        """End the step, by an error perhaps: what the backward pass makes now does not leave."""
        if (ready := self.take()) is not None:
            ready.close()


class ReadyBuckets:
    """The buckets of one step, each of which leaves when all gradients in it have been made.

        this thread     loss | backward pass: ... gradient 9, 8 | 7, 6, 5 | 4 ... 0 | finish | update
        thread beside        | agree                            | bucket 2          | bucket 1, bucket 0

    What a rank sends is what it sends where the `Reducer` is called after the backward pass, in the same order: a rank
    that cannot know its gradients before meets those that do. It costs a walk through the backward pass before it is
    made, and a call of Python for each gradient.

    Args:
        reducer: The `Reducer` of the gradients that will be made, which overlaps.
        shared: The `Shared` of the communicator.
        backward: The backend's `BackwardPass`.
        context: `StepContext`.

    Reference: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", 2020, section 3.2.
    """

    def __init__(self, reducer: Reducer, shared: Shared, backward: BackwardPass, context: StepContext):
        self._reducer, self._shared, self._backward = reducer, shared, backward
        self._summed: list[Gradient] = [None] * len(reducer.plan.of(Kind.DENSE))
        self._summed += [shared.backend.tensors.whole(variable) for variable in context.moving]
        self._left = len(reducer.vectors)  # so many are still to leave
        self._gradient_comes = threading.Lock()  # a framework may have a thread for each device
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
        """Return what the `Reducer` does, called with this step.

        Raises:
            ValueError: If its gradients are not those that have left.
        """
        self.close()
        reduced = (
            None if self._left else self._reducer.finish(StepArrays(0.0))
        )  # also before an error: others count on it
        dense = len(self._reducer.plan.of(Kind.DENSE))
        made = zip(self._summed[:dense], step.summed, strict=False)
        if reducer is not self._reducer or reduced is None or any(sent is not tensor for sent, tensor in made):
            raise ValueError(
                "the optimizer must be given the gradients that the backward pass of `fit()` makes, which have left "
                "when it ends. Received: others. Write a `train_step` of your own, whose gradients leave behind it"
            )
        return reduced
