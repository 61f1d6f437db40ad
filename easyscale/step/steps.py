"""Coordinates collective calls and failure handling across workers."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from easyscale.communicator import Communicator
from easyscale.progress import Activity
from easyscale.step.agreement import Agreed, Purpose
from easyscale.step.context import Tensor
from easyscale.step.gradients import Gradients
from easyscale.step.shared import Shared
from easyscale.timeline import Part

__all__ = ["Steps"]


class Steps:
    """Coordinates the steps of one optimizer with other collective calls, and recovery from failed workers.

    Args:
        communicator: The `Communicator`.
        shared: Its `Shared`.
        gradients: The `Gradients` of the optimizer.
    """

    def __init__(self, communicator: Communicator, shared: Shared, gradients: Gradients):
        self._communicator, self._shared, self._gradients = communicator, shared, gradients

    def note_batch(self, tensors: Sequence[Tensor], exchanges: bool) -> Any:
        """Note, in a step, when its batch is ready; return that time if the exchange is to record it, else `None`.

        Args:
            tensors: Tensors of the batch.
            exchanges: Bool. Whether the step exchanges gradients. If not, the time is recorded now.
        """
        timeline = self._communicator.timeline
        if not timeline.is_on:
            return None
        # Another Python call would cost more than all other records.
        if exchanges and (time := self._shared.backend.time_when(tensors[:1])) is not None:
            return time

        def came(*_: np.ndarray) -> None:
            timeline.to(Part.PASSES)

        self._shared.call(came, tensors[:1], [])
        return None

    def begin(self, phase: int, together: bool, may_be_whole: bool = False) -> None:
        """Start a `fit()`, an epoch or an evaluation.

        Args:
            phase: Int. See `Agreement.phase`.
            together: Bool. Whether all workers do.
            may_be_whole: Bool. Whether each worker may have all data of an evaluation. Defaults to `False`.
        """
        self._shared.agreement.phase, self._shared.together = phase, together
        self._shared.may_be_whole = may_be_whole
        progress = self._communicator.progress
        progress.phase, progress.exchange = phase, self._gradients.exchange.name
        progress.activity = Activity.EVALUATION if phase % 2 else Activity.STEPS

    def meet(self, purpose: Purpose, detail: int = 0) -> Agreed:
        """Announce this worker's next collective call; return the agreed one. See `Agreement.meet`."""
        return self._shared.meet(purpose, detail)

    def ask_to_end(self) -> None:
        """Notify all workers, in their next step, that this one was asked to end."""
        self._shared.agreement.ask_to_end()

    @property
    def asked_to_end(self) -> bool:
        """True if some worker was asked to end. It changes in the same step on all workers."""
        return self._shared.agreement.asked_to_end

    @property
    def exchanges(self) -> int:
        """The number of exchanges of gradients so far, of all optimizers."""
        return self._shared.agreement.count

    @property
    def not_finite(self) -> list[int]:
        """The ranks with the first losses that were not finite, since the last `fit()` began; empty if none."""
        return self._shared.agreement.not_finite

    def expect_finite(self) -> None:
        """Reset `not_finite`."""
        self._shared.agreement.not_finite = []

    def same_batch(self) -> bool:
        """Return whether all workers had the same data in the first exchange since the last call."""
        same, self._shared.same_batch = self._shared.same_batch, None
        return bool(same)

    # Failed workers

    @property
    def failure(self) -> Exception | None:
        """The exception that an exchange has raised inside the graph, or `None`."""
        return self._shared.call.failure

    def interrupt(self) -> None:
        """Interrupt the collective calls of all workers, because one has failed. `shrink` must follow."""
        self._communicator.membership.revoke()
        self._shared.background.submit(lambda: None).result()  # by then, all that was queued has failed

    def shrink(self, exchanges: int) -> None:
        """Continue with the communicator's new ranks.

        Args:
            exchanges: Int. The number of exchanges of gradients that count as done, on all workers.
        """
        self._shared.call.failure = None
        self._shared.agreement.count = exchanges
        self._gradients.exchange.shrink()
        if self._gradients.sums is not None:
            self._gradients.sums.shrink(exchanges)

    def explained(self, on_failure: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Raise the original exception of an exchange inside the graph, without the backend's wrapping.

        Args:
            on_failure: Function. Called on any exception but the end of the data.
        """
        return self._shared.call.explained(on_failure)
