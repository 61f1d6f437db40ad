"""How far a `fit()` has come: its epochs, its steps, and the exchanges of gradients in them."""

from easyscale.replication.replication import Replication
from easyscale.training.stateful import State

__all__ = ["FitProgress"]


class FitProgress:
    """Counts what this worker has done in a `fit()`.

    Args:
        replication: The `Replication`, all workers as one of them sees them.

    Attributes:
        number: Int. 1 in the first `fit()` of all, then 2, ...
        epochs: Int. The epochs of this `fit()`.
        epoch: Int. The epoch in which training is, from 0.
        in_epoch: Bool. Whether it has begun, and not ended, for the callbacks.
        steps: Int. The steps that are done, or count as done.
        exchanges: Int. The exchanges of gradients that are done, with their updates; -1 if this worker has not joined
            the others yet.
        traces: Bool. Whether the next step is traced.
    """

    def __init__(self, replication: Replication):
        self._replication = replication
        self.number = self.epochs = self.epoch = self.steps = self.exchanges = 0
        self.in_epoch, self.traces = False, True

    def begin(self, epochs: int) -> None:
        """Take in that a `fit()` of so many epochs begins."""
        self.epochs, self.number = epochs, self._replication.communicator.membership.begin_fit()

    def move_to(self, epoch: int) -> None:
        """Take in that training goes on in this epoch."""
        self.epoch = epoch

    def begin_epoch(self) -> None:
        """Take in that the epoch begins for the callbacks."""
        self.in_epoch = True

    def end_epoch(self) -> None:
        """Take in that the epoch has ended for the callbacks."""
        self.in_epoch = False

    def count(self, steps: int) -> None:
        """Take in that so many more steps are done."""
        self.steps += steps
        self.traces = False

    def note_exchanges(self) -> None:
        """Take in that all exchanges of gradients so far are done."""
        self.exchanges = self._replication.steps.exchanges

    def settle(self, steps: int) -> None:
        """Take in that so many steps count as done on all workers."""
        self.steps = steps

    def state(self) -> State:
        """Return how far this worker has come."""
        return State({"epoch": self.epoch, "steps": self.steps})

    def load(self, state: State) -> None:
        """Take in that training is as far as it was for another worker."""
        self.epoch, self.steps = state.about["epoch"], state.about["steps"]

    def trace_anew(self) -> None:
        """Take in that the next step is traced."""
        self.traces = True

    def wait_to_join(self) -> None:
        """Take in that this worker's own progress is none: it takes that of the others."""
        self.steps, self.exchanges = 0, -1
