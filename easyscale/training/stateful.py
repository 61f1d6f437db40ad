"""The interface of parts of a training state: two methods, and a name in `TrainingState`."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from easyscale.layout.specs import Spec

__all__ = ["Large", "State", "Stateful"]


class State(NamedTuple):
    """A part of the training state.

    Attributes:
        about: A value for JSON.
        arrays: Dict of arrays, by names that no other part uses.
    """

    about: Any
    arrays: Mapping[str, np.ndarray] = {}


class Stateful(Protocol):
    """An object with a part of the training state, which can be moved to another run or another worker."""

    def state(self) -> State:
        """Return this worker's state; if no worker has all of it, the full state on the chief.

        In that case all workers must call this.
        """

    def load(self, state: State) -> None:
        """Set the state that `state` returned, in another run or on another worker."""


class Large(Stateful, Protocol):
    """A part with arrays so large that memory for their copies is allocated before ranks send theirs."""

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `state` uses the memory."""
