"""What has a part of the state of a training says so: by two methods, and a name in `TrainingState`."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from easyscale.layout.specs import Spec

__all__ = ["Large", "State", "Stateful"]


class State(NamedTuple):
    """A part of the state of a training.

    Attributes:
        about: For JSON.
        arrays: Dict of arrays, by names that no other part uses.
    """

    about: Any
    arrays: Mapping[str, np.ndarray] = {}


class Stateful(Protocol):
    """Has a part of the state of a training, which goes along to another run, or to another worker."""

    def state(self) -> State:
        """Return what this worker has; of what no worker has as a whole, the whole on the chief.

        For that all workers call this together.
        """

    def load(self, state: State) -> None:
        """Go on from what `state` has returned, in another run or on another worker."""


class Large(Stateful, Protocol):
    """A part with arrays so large that there has to be memory for copies of them before ranks send theirs."""

    def specs(self) -> list[Spec]:
        """Return shape and dtype of what `state` finds memory for."""
