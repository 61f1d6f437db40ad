"""How a process that replaces a worker which has failed comes into the `fit()` that the others are in.

It runs the script from its beginning, so it has a model, its part of the data, and callbacks; the others have never
waited for it. Before it says that it is ready it makes one step by itself, as if the others made the same, so that it
has been traced and compiled. What that has changed is overwritten by what the others have.
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

# What newcomers take beside the variables.
_TAKEN = ("layers", "random", "trusted_callbacks", "progress", "decisions", "history")


def rehearse(train_function: Callable, model: keras.Model) -> None:
    """Make one step with data of this `fit()`, if Keras lets it be found."""
    epoch_iterator = locals_of_fit(model).get("epoch_iterator")
    if epoch_iterator is not None:
        with contextlib.suppress(StopIteration):
            train_function(backends.get().begin_pass(epoch_iterator))


def give_state(state: TrainingState, communicator: Communicator, root: int, has_joined: bool) -> None:
    """Give newcomers the state of the rank `root`, beside the variables. All workers call this together.

    Args:
        state: The `TrainingState`.
        communicator: The `Communicator`.
        root: Int. This rank.
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
