"""What updates the weights: an answer to who has which part of the optimizer's state, and what a step sends."""

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
    """How the mean of all workers' gradients becomes new weights, from the begin to the end of a `fit()`.

    A step of every update is made of `reduce`, `update` and `gather`; see `Gradients`. But in `LocalUpdate`, workers
    `reduce` in each step, and have the same weights after it: both are checked. Between two `fit()`s the state is
    whole, and in the optimizer itself.

    To add one, write a subclass with a `name`, in a file of this folder or in a script; see CONTRIBUTING.md.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        connect: Function that returns all workers, as one of them sees them. It is called when they are needed.

    Attributes:
        name: String. By which users ask for it, as in `Distribute(update="sharded")`; `""` if they cannot.
        needs: String. What optimizer it needs.
        is_synchronous: Bool. Whether all workers agree in each step, and their gradients make one.
        active: Bool. Whether it is between `begin` and `end`.
        divides_state: Bool. Whether the optimizer's own state is elsewhere then.
        late: `LateGather`. What gathers weights while the next step begins; `None` if a step has gathered at its end.
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
        """Return the reason for which it cannot be used with an optimizer, or `None` if it can."""
        return None

    def begin(self) -> None:
        """Take over from the optimizer, whose state is the same on all workers. All workers must call this."""
        raise NotImplementedError

    def apply(self, context: StepContext, gradients: list, variables: list[keras.Variable]) -> None:
        """Do what `optimizer.apply(gradients, variables)` would do with the mean of all workers' gradients.

        Args:
            context: `StepContext`. The weight of this worker's gradients in the mean, and what else the step knows.
            gradients: Tensors, `IndexedSlices`, or `None` for a variable that has none.
            variables: The variables they belong to.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Give the whole state back to the optimizer. All workers must call this."""
        raise NotImplementedError

    def abandon(self, lost: bool = True) -> None:
        """End without the others, who may not come to give what they have of the state.

        Args:
            lost: Bool. Whether it is lost. Defaults to `True`.
        """
        raise NotImplementedError

    def set(self, name: str, value: float | None) -> None:
        """Take in that a hyperparameter has been set on the optimizer."""

    # The whole state

    def save_own_variables(self, store: dict) -> None:
        """Write what the optimizer would write if its state were whole. One rank may call this alone."""
        raise NotImplementedError

    def load_own_variables(self, store: dict) -> None:
        """Read what `save_own_variables` writes. All workers must call this."""
        raise NotImplementedError

    def state_specs(self) -> list[Spec]:
        """Return shape and dtype of what `collect` finds memory for, as NumPy has them."""
        raise NotImplementedError

    def collect(self, memory: SnapshotMemory) -> list[np.ndarray]:
        """Return, on the chief, the whole values of the optimizer's variables. All workers must call this.

        Args:
            memory: `SnapshotMemory`. Where they are.
        """
        raise NotImplementedError

    def load(self, values: list[np.ndarray]) -> None:
        """Set what `collect` has returned, on this or another number of workers. All workers must call this."""
        raise NotImplementedError

    @property
    def variables(self) -> list[keras.Variable]:
        """What stands for the optimizer's variables: of some of them this worker may have a part."""
        raise NotImplementedError
