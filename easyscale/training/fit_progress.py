"""The progress of a `fit()`: its epochs, its steps, and the exchanges of gradients in them."""

from easyscale.replication.replication import Replication
from easyscale.training.stateful import State

__all__ = ["FitProgress"]


class FitProgress:
    """Counters of this worker's progress in a `fit()`.

    Args:
        replication: The `Replication`, a worker's view of all workers.

    Attributes:
        number: Int. The number of this `fit()`, from 1.
        epochs: Int. The epochs of this `fit()`.
        epoch: Int. The current epoch, from 0.
        in_epoch: Bool. Whether the epoch has begun, and not ended, for the callbacks.
        steps: Int. The number of steps that are done, or count as done.
        exchanges: Int. The number of gradient exchanges that are done, with their updates; -1 if this worker has not
            joined the others yet.
        traces: Bool. Whether the next step is traced.
    """

    def __init__(self, replication: Replication):
        self._replication = replication
        self.number = self.epochs = self.epoch = self.steps = self.exchanges = 0
        self.in_epoch, self.traces = False, True

    def begin(self, epochs: int) -> None:
        """Start a `fit()` of `epochs` epochs."""
        self.epochs, self.number = epochs, self._replication.communicator.membership.begin_fit()

    def move_to(self, epoch: int) -> None:
        """Set the current epoch."""
        self.epoch = epoch

    def begin_epoch(self) -> None:
        """Record that the epoch begins for the callbacks."""
        self.in_epoch = True

    def end_epoch(self) -> None:
        """Record that the epoch has ended for the callbacks."""
        self.in_epoch = False

    def count(self, steps: int) -> None:
        """Count steps that are done."""
        self.steps += steps
        self.traces = False

    def note_exchanges(self) -> None:
        """Record that all exchanges of gradients so far are done."""
        self.exchanges = self._replication.steps.exchanges

    def settle(self, steps: int) -> None:
        """Set the number of steps that count as done on all workers."""
        self.steps = steps

    def state(self) -> State:
        """Return this worker's progress."""
        return State({"epoch": self.epoch, "steps": self.steps})

    def load(self, state: State) -> None:
        """Set the progress to that of another worker."""
        self.epoch, self.steps = state.about["epoch"], state.about["steps"]

    def trace_anew(self) -> None:
        """Record that the next step will be traced."""
        self.traces = True

    def wait_to_join(self) -> None:
        """Discard this worker's progress, because it will take that of the others."""
        self.steps, self.exchanges = 0, -1
