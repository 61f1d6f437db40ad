"""Decisions of callbacks for all workers: any of them may stop training; the learning rate is the chief's."""

from collections.abc import Iterable, Sequence

import keras
import numpy as np

from easyscale.communicator.data_axis import everyone_of
from easyscale.optimizer import DistributedOptimizer
from easyscale.step.agreement import Purpose
from easyscale.training.meetings import Meetings
from easyscale.training.stateful import State
from easyscale.update.accumulated import unscaled

__all__ = ["Decisions"]


class Decisions:
    """Applies decisions of one worker's callbacks to all workers.

    Args:
        model: The model.
        optimizers: List of its `DistributedOptimizer`s.
        meetings: The `Meetings`.
    """

    def __init__(self, model: keras.Model, optimizers: Sequence[DistributedOptimizer], meetings: Meetings):
        self._model, self._optimizers, self._meetings = model, optimizers, meetings
        self._communicator = everyone_of(optimizers[0].workers.communicator)
        self._hooks: set[str] = set()
        meetings.register(Purpose.DECISION, lambda _: self._agree(has_data=False))

    def begin(self, hooks: Iterable[str]) -> None:
        """Set the step hooks in which a callback of any worker may decide something."""
        self._hooks = set(hooks)

    def are_made_in(self, hook: str) -> bool:
        """Return whether a callback of any worker may decide something in this step hook."""
        return hook in self._hooks

    def state(self) -> State:
        """Return the decisions so far, and the hooks in which there may be more."""
        return State({"stopped": bool(self._model.stop_training), "hooks": sorted(self._hooks)})

    def load(self, state: State) -> None:
        """Apply the decisions of another worker."""
        self._model.stop_training = state.about["stopped"]
        self.begin(state.about["hooks"])

    def agree(self) -> None:
        """Stop if a callback of any worker has decided to, and use the chief's learning rate. All workers call this.

        The callbacks of a worker without data are no longer called. If that is the chief, the next worker's rate is
        used.
        """
        self._meetings.reach(Purpose.DECISION)
        self._agree(has_data=True)

    def _agree(self, has_data: bool) -> None:
        optimizers = _optimizers_with_rates(self._optimizers)
        rates = [float(optimizer.learning_rate) for optimizer in optimizers]
        own = np.array([has_data, self._model.stop_training, *rates], "float64")
        rows = self._communicator.all_gather_rows(own)
        self._model.stop_training = bool(rows[:, 1].any())
        first = rows[:, 0].argmax()
        for optimizer, own_rate, rate in zip(optimizers, rates, rows[first, 2:], strict=True):
            if own_rate != rate:
                optimizer.learning_rate = float(rate)


def _optimizers_with_rates(optimizers: Sequence[DistributedOptimizer]) -> list[keras.optimizers.Optimizer]:
    """Return the inner optimizers; for a `MultiOptimizer`, which has no learning rate, those inside it."""
    inner = [unscaled(optimizer.inner_optimizer) for optimizer in optimizers]
    return [part for optimizer in inner for part in getattr(optimizer, "optimizers", [optimizer])]
