"""The base class of updates: it defines who has which part of the optimizer's state, and what a step sends."""

from collections.abc import Callable
from typing import ClassVar

import keras
import numpy as np

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.layout.specs import Spec
from easyscale.step.context import StepContext
from easyscale.step.gradients import Gradients
from easyscale.step.late_gather import LateGather

__all__ = ["Update"]


class Update:
    """The way from the mean of all workers' gradients to new weights, during a `fit()`.

    A step consists of `reduce`, `update` and `gather`; see `Gradients`. Except in `LocalUpdate` and `ServedUpdate`,
    workers `reduce` in each step, and have the same weights after it: both are checked. Between two `fit()`s the state
    is whole, in the optimizer itself.

    To add one, write a subclass with a `name`, in a file of this folder or in a script; see CONTRIBUTING.md.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        connect: Function that returns the `Gradients`. Called when that is needed.

    Attributes:
        name: String. The name for users, as in `Distribute(update="sharded")`; `""` if they cannot request it.
        needs: String. The kind of optimizer that it needs.
        is_synchronous: Bool. Whether all workers agree in each step, and combine their gradients into one.
        active: Bool. Whether it is between `begin` and `end`.
        divides_state: Bool. Whether the optimizer's own state is elsewhere then.
        late: `LateGather`, which gathers weights during the start of the next step; `None` if a step gathers at its
            end.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[str] = "an optimizer"
    is_synchronous: ClassVar[bool] = True
    active = False
    divides_state = False
    late: LateGather | None = None

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        connect: Callable[[], Gradients],
    ):
        self._optimizer, self._variables, self._connect = optimizer, list(variables), connect

    @classmethod
    def why_not(cls, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> str | None:
        """Return the reason why it cannot be used with an optimizer, or `None` if it can."""
        return None

    def begin(self) -> None:
        """Take over from the optimizer, whose state is the same on all workers. All workers must call this."""
        raise NotImplementedError

    def apply(self, context: StepContext, gradients: list, variables: list[keras.Variable]) -> None:
        """Do the equivalent of `optimizer.apply(gradients, variables)` with the mean of all workers' gradients.

        Args:
            context: `StepContext`. The weight of this worker's gradients in the mean, and other information on the
                step.
            gradients: Tensors, `IndexedSlices`, or `None` for a variable that has none.
            variables: The variables they belong to.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Return the whole state to the optimizer. All workers must call this."""
        raise NotImplementedError

    def abandon(self, lost: bool = True) -> None:
        """End without the other workers, which may not return their parts of the state.

        Args:
            lost: Bool. Whether the state is lost. Defaults to `True`.
        """
        raise NotImplementedError

    def set(self, name: str, value: float | None) -> None:
        """Called after a hyperparameter was set on the optimizer."""

    # The whole state

    def save_own_variables(self, store: dict) -> None:
        """Write the variables as the optimizer would with its whole state. One rank may call this alone."""
        raise NotImplementedError

    def load_own_variables(self, store: dict) -> None:
        """Read the result of `save_own_variables`. All workers must call this."""
        raise NotImplementedError

    def state_specs(self) -> list[Spec]:
        """Return NumPy shape and dtype of each array for which `collect` uses the given memory."""
        raise NotImplementedError

    def collect(self, memory: SnapshotMemory) -> list[np.ndarray]:
        """Return, on the chief, the whole values of the optimizer's variables. All workers must call this.

        Args:
            memory: `SnapshotMemory`. The memory for the values.
        """
        raise NotImplementedError

    def load(self, values: list[np.ndarray]) -> None:
        """Set the result of `collect`, on this or another number of workers. All workers must call this."""
        raise NotImplementedError

    @property
    def variables(self) -> list[keras.Variable]:
        """Stand-ins for the optimizer's variables: of some of them this worker may have only a part."""
        raise NotImplementedError
