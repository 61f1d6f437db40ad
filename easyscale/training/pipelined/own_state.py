"""The state of a `fit()` of a model that no rank has in full: each rank has that of its stage.

A checkpoint of it is what one process would write; see `StageCopies` for writing and reading it.
"""

from collections.abc import Mapping

import keras

from easyscale import backend as backends
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.layout.specs import Spec, specs_of
from easyscale.mesh import Mesh
from easyscale.optimizers.nested import all_variables
from easyscale.parallel.pipeline.deferred import has_value
from easyscale.training.pipelined.optimizer import StageOptimizer, build_whole, keyed
from easyscale.training.pipelined.own_stage import OwnStage
from easyscale.training.pipelined.stage_copies import StageCopies
from easyscale.training.pipelined.staged_state import check_count
from easyscale.training.stateful import State
from easyscale.training.variable_states import classes_of

__all__ = ["OwnNames", "OwnOptimizer", "OwnWeights"]


class OwnNames:
    """The weights of all stages, and the state that belongs to them, by their names in a checkpoint.

    Args:
        model: The model.
        own: The `OwnStage` of this rank.
    """

    def __init__(self, model: keras.Model, own: OwnStage):
        self._model, self._own = model, own

    def weights(self) -> dict[str, keras.Variable]:
        """Return the weights by name."""
        return {f"weight/{number}": weight for number, weight in enumerate(self._model.weights)}

    def states(self) -> dict[str, keras.Variable]:
        """Build the model's optimizer; return its variables by name."""
        build_whole(self._model)
        return {f"optimizer/0/{index}": state for index, state in enumerate(all_variables(self._model.optimizer))}

    def by_key(self) -> dict[str, str]:
        """Return the name of each state by its key, which is the same on all stages."""
        names = {id(state): name for name, state in self.states().items()}
        states = keyed(self._model.optimizer, self._model, self._model.trainable_variables)
        return {key: names[id(state)] for key, state in states.items()}

    def needed(self) -> dict[str, list[int]]:
        """Return the stages that need each of them, of which the first has it; except those that all stages have."""
        variables = {**self.weights(), **self.states()}
        stages = {id(variable): stages for variable, stages in self._own.variables}
        return {name: stages[id(variable)] for name, variable in variables.items() if id(variable) in stages}


class OwnWeights:
    """The weights of each stage, on its rank.

    Args:
        names: The `OwnNames`.
        mesh: The `Mesh`.
        memory: `SnapshotMemory` for copies of them.
        copies: The `StageCopies`.
    """

    def __init__(self, names: OwnNames, mesh: Mesh, memory: SnapshotMemory, copies: StageCopies):
        self._names, self._memory, self._copies = names, memory, copies
        self._stage, self._writes = mesh["model"].rank, mesh["data"].rank == 0

    def _copied(self) -> dict[str, keras.Variable]:
        """Return the weights that this rank copies for a checkpoint; those of no stage are the chief's."""
        needed = self._names.needed()
        return {
            name: weight
            for name, weight in self._names.weights().items()
            if self._writes and needed.get(name, [0])[0] == self._stage
        }

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `state` uses the memory."""
        return specs_of(list(self._copied().values()))

    def describe(self) -> list[list]:
        """Return path and shape of each weight, for JSON."""
        return [[weight.path, list(weight.shape)] for weight in self._names.weights().values()]

    def state(self) -> State:
        """Return the weights, on the chief: those of other stages are fetched when they are written."""
        own = {name: self._memory.copy(backends.view_of(weight)) for name, weight in self._copied().items()}
        return State(self.describe(), self._copies.hold(_specs_of(self._names.weights()), own))

    def load(self, state: State) -> None:
        """Set the weights that this rank needs of those that `state` returned."""
        needed = self._names.needed()
        for name, weight in self._names.weights().items():
            if self._stage in needed.get(name, [self._stage]):
                weight.assign(state.arrays[name])


class OwnOptimizer:
    """The state of each stage's optimizer, on its rank, by the names of the whole model's.

    Args:
        names: The `OwnNames`.
        mesh: The `Mesh`.
        model: The model.
        optimizer: The `StageOptimizer` of this rank.
        memory: `SnapshotMemory` for copies of it.
        copies: The `StageCopies`.
    """

    def __init__(
        self,
        names: OwnNames,
        mesh: Mesh,
        model: keras.Model,
        optimizer: StageOptimizer,
        memory: SnapshotMemory,
        copies: StageCopies,
    ):
        self._names, self._model, self._optimizer, self._memory, self._copies = names, model, optimizer, memory, copies
        self._writes, self._is_chief = mesh["data"].rank == 0, mesh.communicator.is_chief

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `state` uses the memory."""
        return self._optimizer.distributed.updates.of_checkpoints.state_specs() if self._writes else []

    def describe(self) -> list[list]:
        """Return the classes of the optimizer, for JSON."""
        return [classes_of(self._model.optimizer)]

    def state(self) -> State:
        """Return the whole state, on the chief: that of other stages is fetched when it is written."""
        variables, needed, names = self._names.states(), self._names.needed(), self._names.by_key()
        states, own = self._optimizer.state(self._memory), {}
        if self._is_chief:  # the same on all stages: step counter, learning rate
            common = [name for name, state in variables.items() if name not in needed and has_value(state)]
            own = {name: backends.value_of(variables[name]) for name in common}
        if self._writes:
            own |= {names[key]: value for key, value in states.items() if names[key] in needed or self._is_chief}
        return State(self.describe(), self._copies.hold(_specs_of(variables), own))

    def load(self, state: State) -> None:
        """Set the state that this rank needs of what `state` returned."""
        variables, needed, names = self._names.states(), self._names.needed(), self._names.by_key()
        check_count(self._model.optimizer, len(variables), state)
        distributed = self._optimizer.distributed
        distributed.unshard(complete=True)
        for name, variable in variables.items():
            if name not in needed:
                variable.assign(state.arrays[name])
        for key, variable in self._optimizer.variables().items():
            variable.assign(state.arrays[names[key]])
        distributed.shard()


def _specs_of(variables: Mapping[str, keras.Variable]) -> dict[str, Spec]:
    return dict(zip(variables, specs_of(list(variables.values())), strict=True))
