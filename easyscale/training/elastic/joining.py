"""Joining of a replacement process in the `fit()` of the other workers.

It runs the script from the start, so it has a model, its part of the data, and callbacks; the others never wait for it.
Before it reports that it is ready, it makes one step by itself, as if the others took part, so that the step is traced
and compiled. Everything that this has changed is overwritten by the others' state.
"""

import contextlib
from collections.abc import Callable

import keras

from easyscale import backend as backends
from easyscale.communicator import Communicator
from easyscale.training.broadcast_arrays import broadcast_arrays
from easyscale.training.keras_fit import locals_of_fit
from easyscale.training.stateful import State
from easyscale.training.training_state import TrainingState

__all__ = ["give_state", "rehearse"]

# The state that newcomers receive, besides the variables.
_TAKEN = ("layers", "random", "trusted_callbacks", "progress", "decisions", "history")


def rehearse(train_function: Callable, model: keras.Model) -> None:
    """Make one step with data of this `fit()`, if its iterator can be found."""
    epoch_iterator = locals_of_fit(model).get("epoch_iterator")
    if epoch_iterator is not None:
        with contextlib.suppress(StopIteration):
            train_function(backends.get().begin_pass(epoch_iterator))


def give_state(state: TrainingState, communicator: Communicator, root: int, has_joined: bool) -> None:
    """Send newcomers the state of rank `root`, besides the variables. All workers must call this.

    Args:
        state: The `TrainingState`.
        communicator: The `Communicator`.
        root: Int. The rank whose state is sent.
        has_joined: Bool. Whether this worker is a newcomer.
    """
    given: dict[str, State] = state.state({*_TAKEN, "seeds"}) if communicator.rank == root else {}
    about = communicator.all_gather_object({name: part.about for name, part in given.items()})[root]
    arrays = broadcast_arrays(
        communicator, {name: array for part in given.values() for name, array in part.arrays.items()}, root
    )
    if has_joined:
        state.load({name: State(about[name], arrays) for name in _TAKEN})
        state.seeds.derive(State(about["seeds"]))
