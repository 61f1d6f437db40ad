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
    """The steps of one optimizer, among all that workers do together, and how all leave when one has failed.

    Args:
        communicator: The `Communicator`.
        shared: Its `Shared`.
        gradients: The `Gradients` whose gradients are exchanged in a step.
    """

    def __init__(self, communicator: Communicator, shared: Shared, gradients: Gradients):
        self._communicator, self._shared, self._gradients = communicator, shared, gradients

    def note_batch(self, tensors: Sequence[Tensor], exchanges: bool) -> Any:
        """Return, in a step, when these tensors of its batch have come; `None` if parts of steps are not recorded.

        Args:
            tensors: The tensors.
            exchanges: Bool. Whether the step exchanges gradients: it is told the time then, else it is told now.
        """
        timeline = self._communicator.timeline
        if not timeline.is_on:
            return None
        if exchanges:  # a call of Python more would take longer than all else that is recorded
            return self._shared.backend.time_when(tensors[:1])

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
        """Tell the others what this worker does next; return what they do. See `Agreement.meet`."""
        return self._shared.meet(purpose, detail)

    def ask_to_end(self) -> None:
        """Let all workers know, in their next step, that this one was asked to end."""
        self._shared.agreement.ask_to_end()

    @property
    def asked_to_end(self) -> bool:
        """Whether some worker was asked to end; all know it from the same step on."""
        return self._shared.agreement.asked_to_end

    @property
    def exchanges(self) -> int:
        """The number of exchanges of gradients so far, of all optimizers."""
        return self._shared.agreement.count

    @property
    def not_finite(self) -> list[int]:
        """The ranks whose losses were the first that were not finite, since the last `fit()` began; none so far."""
        return self._shared.agreement.not_finite

    def expect_finite(self) -> None:
        """Forget of which ranks the losses were not finite."""
        self._shared.agreement.not_finite = []

    def same_batch(self) -> bool:
        """Return whether all workers had the same data in the first exchange since this was last called."""
        same, self._shared.same_batch = self._shared.same_batch, None
        return bool(same)

    # Workers that have failed

    @property
    def failure(self) -> Exception | None:
        """What an exchange has raised inside the graph."""
        return self._shared.call.failure

    def interrupt(self) -> None:
        """Have all workers come out of what they do together, because one has failed. `shrink` must follow."""
        self._communicator.membership.revoke()
        self._shared.background.submit(lambda: None).result()  # what is queued there has failed by then

    def shrink(self, exchanges: int) -> None:
        """Go on with the communicator's new ranks.

        Args:
            exchanges: Int. As many exchanges of gradients as count as done, on all workers.
        """
        self._shared.call.failure = None
        self._shared.agreement.count = exchanges
        self._gradients.exchange.shrink()
        if self._gradients.sums is not None:
            self._gradients.sums.shrink(exchanges)

    def explained(self, on_failure: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Raise what an exchange raised inside the graph as it was, without the backend's wrapping.

        Args:
            on_failure: Called when anything but the end of the data is raised.
        """
        return self._shared.call.explained(on_failure)
