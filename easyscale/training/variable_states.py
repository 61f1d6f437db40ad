"""Weights, and the optimizers' state for them, as parts of the training state."""

from collections.abc import Sequence

import keras

from easyscale.backend import view_of
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.layout.specs import Spec, specs_of
from easyscale.optimizer import DistributedOptimizer
from easyscale.optimizers.nested import all_variables, inside
from easyscale.training.parts import batch_normalization
from easyscale.training.stateful import State

__all__ = ["OptimizerStates", "Weights", "classes_of"]


class Weights:
    """A model's weights.

    Args:
        model: The model.
        communicator: The `Communicator`.
        memory: `SnapshotMemory` for copies of them.
    """

    def __init__(self, model: keras.Model, communicator: Communicator, memory: SnapshotMemory):
        self._model, self._communicator, self._memory = model, communicator, memory

    @property
    def variables(self) -> list[keras.Variable]:
        """The weights."""
        return list(self._model.weights)

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `state` uses the memory."""
        return specs_of(self._model.weights)

    def describe(self) -> list[list]:
        """Return path and shape of each weight, for JSON."""
        return [[variable.path, list(variable.shape)] for variable in self._model.weights]

    def state(self) -> State:
        """Return the weights, on the chief. Statistics moved by each worker are averaged. All workers call this."""
        means = batch_normalization.mean_statistics(self._model, self._communicator)
        by_id = {id(variable): mean for variable, mean in means}
        arrays = {}
        if self._communicator.is_chief:
            values = (by_id.get(id(weight), view_of(weight)) for weight in self._model.weights)
            arrays = {f"weight/{number}": self._memory.copy(value) for number, value in enumerate(values)}
        return State(self.describe(), arrays)

    def load(self, state: State) -> None:
        """Set the weights that `state` returned."""
        for number, variable in enumerate(self._model.weights):
            variable.assign(state.arrays[f"weight/{number}"])


class OptimizerStates:
    """The state of a model's optimizers for its weights, sharded over workers or not.

    Args:
        optimizers: The `DistributedOptimizer`s.
        memory: `SnapshotMemory` for copies of it.
    """

    def __init__(self, optimizers: Sequence[DistributedOptimizer], memory: SnapshotMemory):
        self._optimizers, self._memory = optimizers, memory

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables that all workers have."""
        return [variable for optimizer in self._optimizers for variable in all_variables(optimizer.inner_optimizer)]

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `state` uses the memory."""
        return [spec for optimizer in self._optimizers for spec in optimizer.updates.of_checkpoints.state_specs()]

    def describe(self) -> list[list]:
        """Return the classes of the optimizers, for JSON."""
        return [classes_of(optimizer.inner_optimizer) for optimizer in self._optimizers]

    def state(self) -> State:
        """Return the whole state, on the chief. All workers must call this."""
        arrays = {
            f"optimizer/{number}/{index}": value
            for number, optimizer in enumerate(self._optimizers)
            for index, value in enumerate(optimizer.collect_state(self._memory))
        }
        return State(self.describe(), arrays)

    def load(self, state: State) -> None:
        """Set the state that `state` returned, on this or another number of workers. All workers must call this."""
        for number, optimizer in enumerate(self._optimizers):
            prefix = f"optimizer/{number}/"
            count = sum(name.startswith(prefix) for name in state.arrays)
            optimizer.set_state([state.arrays[f"{prefix}{index}"] for index in range(count)])


def classes_of(optimizer: keras.optimizers.Optimizer) -> list:
    """Return the class of an optimizer, and of those nested in it."""
    return [type(optimizer).__name__, *map(classes_of, inside(optimizer))]
