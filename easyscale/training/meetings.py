"""The synchronization points of the workers in a `fit()`, including those without data."""

from collections.abc import Callable, Sequence

from easyscale.optimizer import DistributedOptimizer
from easyscale.step.agreement import Agreed, Purpose
from easyscale.timeline import Part
from easyscale.training.fit_progress import FitProgress

__all__ = ["Meetings"]


class Meetings:
    """Synchronizes workers without deadlocks: one that arrives early takes part in the operations of the others.

    Each component registers a handler for the `Purpose` for which it makes workers meet.

    Args:
        optimizers: List of the model's `DistributedOptimizer`s.
        progress: The `FitProgress`.
    """

    def __init__(self, optimizers: Sequence[DistributedOptimizer], progress: FitProgress):
        self._optimizers, self._progress, self._replication = optimizers, progress, optimizers[0].workers
        self._acts: dict[Purpose, Callable[[int], None]] = {}
        self._finishes: list[Callable[[], None]] = []

    def register(self, purpose: Purpose, act: Callable[[int], None]) -> None:
        """Register `act(detail)`, called on workers that wait for a lower purpose when others come for `purpose`."""
        self._acts[purpose] = act

    def register_finish(self, finish: Callable[[], None]) -> None:
        """Register `finish()`, called before a worker meets the others: an operation may overlap with its steps."""
        self._finishes.append(finish)

    def begin(self) -> None:
        """Wait until all workers begin this `fit()`.

        Raises:
            DesyncError: If a worker begins while others are still in an earlier one, which has failed on it alone.
        """
        self._replication.steps.meet(Purpose.BEGIN)

    def reach(self, purpose: Purpose, detail: int = 0) -> None:
        """Wait until all workers have come to `purpose`; until then take part in what those with more steps do.

        Before that, the model receives the weights of the last step.
        """
        self.settle()
        timeline = self._replication.communicator.timeline
        before = timeline.to(Part.WAIT)
        while (agreed := self._replication.steps.meet(purpose, detail)).purpose != purpose:
            self._join(agreed)
        timeline.to(before)

    def settle(self) -> None:
        """Complete pending operations: receive the weights of the last step, and call registered functions."""
        for optimizer in self._optimizers:
            if optimizer.late is not None:
                optimizer.late.settle()
        for finish in self._finishes:
            finish()

    def _join(self, agreed: Agreed) -> None:
        if agreed.purpose in self._acts:
            self._acts[agreed.purpose](agreed.detail)
            self.settle()
        elif not any(optimizer.join(agreed) for optimizer in self._optimizers):
            raise ValueError(
                "a worker must have had data before it can go on without. Received: none in this fit() on worker "
                f"{self._replication.communicator.rank}. Give each worker at least one batch"
            )
        self._progress.note_exchanges()
