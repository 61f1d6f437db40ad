"""What workers do in turn, the same on all of them, and how they come out of it together."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from easyscale.communicator import Communicator
from easyscale.progress import Activity
from easyscale.step.agreement import Agreed, Purpose
from easyscale.step.interfaces import GradientSync, StepProtocol, Tensor
from easyscale.step.shared import Shared
from easyscale.timeline import Part

__all__ = ["Steps"]


class Steps(StepProtocol):
    """The steps of one optimizer, among all that workers do together.

    Args:
        communicator: The `Communicator`.
        shared: Its `Shared`.
        gradients: The `GradientSync` whose gradients are exchanged in a step.
    """

    def __init__(self, communicator: Communicator, shared: Shared, gradients: GradientSync):
        self._communicator, self._shared, self._gradients = communicator, shared, gradients

    def note_batch(self, tensors: Sequence[Tensor], exchanges: bool) -> Any:
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
        self._shared.agreement.phase, self._shared.together = phase, together
        self._shared.may_be_whole = may_be_whole
        progress = self._communicator.progress
        progress.phase, progress.exchange = phase, self._gradients.exchange.name
        progress.activity = Activity.EVALUATION if phase % 2 else Activity.STEPS

    def meet(self, purpose: Purpose, detail: int = 0) -> Agreed:
        return self._shared.meet(purpose, detail)

    def ask_to_end(self) -> None:
        self._shared.agreement.ask_to_end()

    @property
    def asked_to_end(self) -> bool:
        return self._shared.agreement.asked_to_end

    @property
    def exchanges(self) -> int:
        return self._shared.agreement.count

    @property
    def not_finite(self) -> list[int]:
        return self._shared.agreement.not_finite

    def expect_finite(self) -> None:
        self._shared.agreement.not_finite = []

    def same_batch(self) -> bool:
        same, self._shared.same_batch = self._shared.same_batch, None
        return bool(same)

    # Workers that have failed

    @property
    def failure(self) -> Exception | None:
        return self._shared.call.failure

    def interrupt(self) -> None:
        self._communicator.membership.revoke()
        self._shared.background.submit(lambda: None).result()  # what is queued there has failed by then

    def shrink(self, exchanges: int) -> None:
        self._shared.agreed = self._shared.call.failure = None
        self._shared.agreement.count = exchanges
        self._gradients.exchange.shrink()
        if self._gradients.sums is not None:
            self._gradients.sums.shrink(exchanges)

    def explained(self, on_failure: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        return self._shared.call.explained(on_failure)
