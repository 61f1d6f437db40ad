"""Where the workers of a `fit()` meet, also those that have no data left."""

from collections.abc import Callable, Sequence

from easyscale.optimizer import DistributedOptimizer
from easyscale.step.agreement import Agreed, Purpose
from easyscale.timeline import Part
from easyscale.training.fit_progress import FitProgress

__all__ = ["Meetings"]


class Meetings:
    """Lets workers wait for each other without hanging: one that has come early takes part in what the others do.

    Whoever has the others meet for a `Purpose` registers what is done then.

    Args:
        optimizers: List of the model's `DistributedOptimizer`s.
        progress: The `FitProgress`.
    """

    def __init__(self, optimizers: Sequence[DistributedOptimizer], progress: FitProgress):
        self._optimizers, self._progress, self._replication = optimizers, progress, optimizers[0].workers
        self._acts: dict[Purpose, Callable[[int], None]] = {}
        self._finishes: list[Callable[[], None]] = []

    def register(self, purpose: Purpose, act: Callable[[int], None]) -> None:
        """Have a worker that has come for less do `act(detail)` when others have come for `purpose`."""
        self._acts[purpose] = act

    def register_finish(self, finish: Callable[[], None]) -> None:
        """Have a worker do `finish()` before it meets the others: something may go on beside its steps."""
        self._finishes.append(finish)

    def begin(self) -> None:
        """Return when all workers begin this `fit()`.

        Raises:
            DesyncError: If one does while others are still in an earlier one, which has failed on that worker alone.
        """
        self._replication.steps.meet(Purpose.BEGIN)

    def reach(self, purpose: Purpose, detail: int = 0) -> None:
        """Return when all workers have come to `purpose`; until then take part in what those do who have more steps.

        The model has the weights of the last step then.
        """
        self.settle()
        timeline = self._replication.communicator.timeline
        before = timeline.to(Part.WAIT)
        while (agreed := self._replication.steps.meet(purpose, detail)).purpose != purpose:
            self._join(agreed)
        timeline.to(before)

    def settle(self) -> None:
        """Return when the model has what is on its way: weights of the last step, or what was registered."""
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
