"""Logs of all epochs so far, including those before a worker joined."""

import keras

from easyscale.errors import is_number
from easyscale.training.stateful import State

__all__ = ["PastLogs"]


class PastLogs:
    """The logs of the epochs of a `fit()`.

    Args:
        model: The model, whose `History` has this worker's own epochs.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._before: dict[str, list] = {}  # logs from before this worker joined

    def so_far(self) -> dict[str, list]:
        """Return the logs of each epoch, if they are numbers."""
        own = self._model.history.history
        logs = {name: self._before.get(name, []) + list(own.get(name, [])) for name in {*self._before, *own}}
        return {name: list(map(float, found)) for name, found in logs.items() if all(map(is_number, found))}

    def state(self) -> State:
        """Return the logs so far."""
        return State(self.so_far())

    def load(self, state: State) -> None:
        """Set the logs from before this worker joined, as seen by another worker."""
        self._before = state.about
