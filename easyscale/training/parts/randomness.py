"""Random numbers that differ between workers, and are derived from the chief's seed."""

from typing import Any

import keras

from easyscale import backend as backends
from easyscale.backend import value_of
from easyscale.backend.base import Backend
from easyscale.communicator.data_axis import everyone_of
from easyscale.replication.replication import Replication
from easyscale.step.random_state import get_random_state, mix, set_random_state
from easyscale.training.stateful import State

__all__ = ["RandomState", "Seeds", "mix"]


class RandomState:
    """The random number generators of this process, as a part of the training state.

    Args:
        backend: The `Backend`, with its own generator.
    """

    def __init__(self, backend: Backend):
        self._backend = backend

    def state(self) -> State:
        """Return their states."""
        return State(get_random_state(self._backend))

    def load(self, state: State) -> None:
        """Set the states that `state` returned."""
        set_random_state(self._backend, state.about)


class Seeds:
    """The random number generators of a model's layers, such as dropout: each has a seed and a count.

    Args:
        model: The model.
        replication: The `Replication` of one of its optimizers.
    """

    def __init__(self, model: keras.Model, replication: Replication):
        self._model, self._replication = model, replication

    def _copies(self) -> list[list[tuple[int, Any]]]:
        """Return each generator's state, as a variable on each of this worker's devices, with the device's number."""
        states = [variable for variable in self._model.variables if variable.name == "seed_generator_state"]
        return [self._replication.replicas.copies_of(state) for state in states]

    def differ(self) -> None:
        """Give every worker's layers different random numbers. All workers must call this.

        The chief's stay as they are. Other workers' seeds are derived from the chief's and their number, so that one
        `keras.utils.set_random_seed` on the chief makes all of them reproducible.
        """
        communicator = self._replication.communicator
        self.derive(State(everyone_of(communicator).all_gather_object(self.state().about)[0]))
        backends.get().differ(communicator)

    def agree_on_random_state(self) -> None:
        """After a `fit()`, let scripts draw the same numbers on all workers again. All workers must call this."""
        backends.get().agree_on_random_state(self._replication.communicator)

    def derive(self, state: State) -> None:
        """Derive this worker's random numbers from another's."""
        for copies, ((seed, count), *_) in zip(self._copies(), state.about, strict=True):
            for number, copy in copies:
                copy.assign([mix(seed, number) if number > 0 else seed, count])

    def state(self) -> State:
        """Return the states of this worker's generators, for each device."""
        return State([[value_of(copy).tolist() for _, copy in copies] for copies in self._copies()])

    def load(self, state: State) -> None:
        """Set the states that `state` returned, on a worker with the same number of devices."""
        for copies, values in zip(self._copies(), state.about, strict=True):
            for (_, copy), value in zip(copies, values, strict=True):
                copy.assign(value)
