"""Gradients that leave while a backward pass makes them, where that is no graph which has calls in it."""

import threading
from collections.abc import Sequence
from typing import Any

from easyscale.backend.base import BackwardPass
from easyscale.communicator.data_axis import everyone_of
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Variable
from easyscale.step.exchanges_of_gradients import ExchangesOfGradients
from easyscale.step.gradient_exchange import GradientExchange
from easyscale.step.interfaces import Gradient, StepContext, Tensor
from easyscale.step.shared import Shared
from easyscale.step.way import Way

__all__ = ["EarlyGradients", "ReadyBuckets"]


class EarlyGradients:
    """Lets the gradients of one optimizer leave while the backward pass goes on, in the steps in which that gains.

    Such a step makes the update that the one before has made.

    Args:
        way: The `Way` on which they travel.
        shared: The `Shared` of its communicator.
        exchanges: The optimizer's `ExchangesOfGradients`.
    """

    def __init__(self, way: Way, shared: Shared, exchanges: ExchangesOfGradients):
        self._way, self._shared, self._exchanges = way, shared, exchanges
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
        expected = self._exchanges.of(context, tensors, variables, (dense, [], []), False, shards)
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

    What a rank sends is what it sends where `GradientExchange` is called behind the backward pass, in the same order: a
    rank that cannot know of its gradients before meets those that do. It costs a walk through the backward pass before
    it is made, and a call of Python for each gradient.

    Args:
        exchange: The `GradientExchange` of the gradients that will be made, which overlaps.
        shared: The `Shared` of the communicator.
        backward: The backend's `BackwardPass`.
        context: `StepContext`.

    Reference: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", 2020, section 3.2.
    """

    def __init__(self, exchange: GradientExchange, shared: Shared, backward: BackwardPass, context: StepContext):
        self._exchange, self._shared, self._backward = exchange, shared, backward
        self._gradients = len(exchange.specs.dense)
        self._tensors: list[Gradient] = [None] * self._gradients
        self._tensors += [shared.backend.tensors.whole(variable) for variable in context.moving]
        self._left = len(exchange.routes)  # so many are still to leave
        self._gradient_comes = threading.Lock()  # a framework may have a thread for each device
        if context.came is not None:
            shared.timeline.came(context.came)
        known = backward.copies([context.weight, *context.losses, *context.data])
        exchange.start(known, len(context.losses))
        self.close = backward.watch(dict(enumerate(exchange.variables)), self._take)

    def _take(self, position: int, gradient: Gradient) -> None:
        with self._gradient_comes:
            self._tensors[position] = gradient
            while self._left and self._is_there(self._left - 1):
                self._left -= 1
                selected = self._exchange.routes[self._left].select(self._tensors)
                self._exchange.send(self._left, self._backward.copies(selected))

    def _is_there(self, number: int) -> bool:
        return all(self._tensors[position] is not None for position in self._exchange.routes[number].positions.values())

    def finish(self, exchange: GradientExchange, tensors: Sequence[Any]) -> list[Any]:
        """Return what `GradientExchange` does, called with these tensors.

        Raises:
            ValueError: If these are not the gradients that have left.
        """
        self.close()
        means = [] if self._left else self._exchange.finish()  # before an error: the others count on what has left
        made = zip(self._tensors[: self._gradients], tensors, strict=False)
        if exchange is not self._exchange or self._left or any(sent is not tensor for sent, tensor in made):
            raise ValueError(
                "the optimizer must be given the gradients that the backward pass of `fit()` makes, which have left "
                "when it ends. Received: others. Write a `train_step` of your own, whose gradients leave behind it"
            )
        return means
