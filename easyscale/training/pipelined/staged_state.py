"""The state of a `fit()` by pipelines: each stage has a part of it, and a checkpoint the whole.

A checkpoint is what one process would write, with pipelines as workers. So it can be resumed with any number of stages.
"""

import warnings
from typing import Protocol

import keras

from easyscale import backend as backends
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.errors import EasyScaleError, EasyScaleWarning
from easyscale.layout.specs import Spec, specs_of
from easyscale.mesh import Mesh
from easyscale.optimizers.nested import all_variables
from easyscale.parallel.pipeline.cut import Cut
from easyscale.training.broadcast_arrays import broadcast_arrays
from easyscale.training.callback_state import CallbackStates
from easyscale.training.checkpointed import Described, Parts
from easyscale.training.data_position import DataPosition
from easyscale.training.fit_progress import FitProgress
from easyscale.training.parts.metrics import MetricStates
from easyscale.training.parts.randomness import RandomState, mix
from easyscale.training.pipelined.optimizer import StageOptimizer, build_whole
from easyscale.training.pipelined.whole_model import WholeModel
from easyscale.training.state_parts import StateParts
from easyscale.training.stateful import Large, State, Stateful
from easyscale.training.variable_states import Weights, classes_of

__all__ = ["LargeState", "StageSeeds", "StagedOptimizer", "StagedState", "StagedWeights", "check_count"]


class LargeState(Described, Large, Protocol):
    """The weights, or the state of the optimizers, of all stages."""


class StagedState(StateParts):
    """The parts of the state, by name. All methods are collective.

    Args:
        model: The model.
        cut: Its `Cut`.
        mesh: The `Mesh`, with the axes `"data"` and `"model"`.
        weights: The `StagedWeights`, or `OwnWeights`.
        optimizers: The `StagedOptimizer`, or `OwnOptimizer`.
        memory: `SnapshotMemory` for these two.
        parts: `Parts`. `None` if the chief has the whole checkpoint.
        progress: The `FitProgress`.
        data: The `DataPosition`.
        callbacks: The `CallbackStates`.

    Attributes:
        memory: The same.
        parts: The same.
        weights: The same.
        optimizers: The same.
        metrics: The `StagedMetrics`.
        seeds: The `StageSeeds`.
    """

    def __init__(
        self,
        model: keras.Model,
        cut: Cut,
        mesh: Mesh,
        weights: LargeState,
        optimizers: LargeState,
        memory: SnapshotMemory,
        parts: Parts | None,
        progress: FitProgress,
        data: DataPosition,
        callbacks: CallbackStates,
    ):
        self.weights, self.optimizers, self.parts = weights, optimizers, parts
        self.metrics, self.seeds = StagedMetrics(model, mesh), StageSeeds(model, cut, mesh)
        others: dict[str, Stateful] = {
            "metrics": self.metrics,
            "random": RandomState(backends.get()),
            "seeds": self.seeds,
            "data": data,
            "progress": progress,
            "decisions": Stopping(model),
            "callbacks": callbacks,
        }
        super().__init__(memory, {"optimizers": optimizers, "weights": weights}, others)


class StagedWeights:
    """The weights of all stages.

    Args:
        model: The model.
        mesh: The `Mesh`.
        whole: The `WholeModel`.
        memory: `SnapshotMemory` for copies of them.
    """

    def __init__(self, model: keras.Model, mesh: Mesh, whole: WholeModel, memory: SnapshotMemory):
        self._weights, self._whole = Weights(model, mesh.communicator, memory), whole

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `state` uses the memory."""
        return self._weights.specs()

    def describe(self) -> list[list]:
        """Return path and shape of each weight, for JSON."""
        return self._weights.describe()

    def state(self) -> State:
        """Return the weights, on the chief."""
        self._whole.gather_weights()
        return self._weights.state()

    def load(self, state: State) -> None:
        """Set the weights that `state` returned."""
        self._weights.load(state)


class StagedOptimizer:
    """The state of the optimizers of all stages, as that of the model's optimizer.

    Args:
        model: The model.
        mesh: The `Mesh`.
        whole: The `WholeModel`.
        optimizer: The `StageOptimizer` of this rank.
        memory: `SnapshotMemory` for copies of it.
    """

    def __init__(
        self, model: keras.Model, mesh: Mesh, whole: WholeModel, optimizer: StageOptimizer, memory: SnapshotMemory
    ):
        self._model, self._mesh, self._whole, self._optimizer, self._memory = model, mesh, whole, optimizer, memory

    def _variables(self) -> list[keras.Variable]:
        build_whole(self._model)
        return all_variables(self._model.optimizer)

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `state` uses the memory."""
        return specs_of(self._variables())

    def describe(self) -> list[list]:
        """Return the classes of the optimizer, for JSON."""
        return [classes_of(self._model.optimizer)]

    def state(self) -> State:
        """Return the whole state, on the chief."""
        self._whole.give_back(self._optimizer)
        self._whole.gather_state(self._optimizer, complete=False, is_needed=self._mesh["data"].rank == 0)
        if not self._mesh.communicator.is_chief:
            return State(self.describe())
        values = enumerate(map(backends.view_of, self._variables()))
        return State(self.describe(), {f"optimizer/0/{index}": self._memory.copy(value) for index, value in values})

    def load(self, state: State) -> None:
        """Set the state that `state` returned, also in one process or with another number of stages."""
        variables = self._variables()
        check_count(self._model.optimizer, len(variables), state)
        distributed = self._optimizer.distributed
        distributed.unshard(complete=True)
        for index, variable in enumerate(variables):
            variable.assign(state.arrays[f"optimizer/0/{index}"])
        self._optimizer.load(self._model)
        distributed.shard()


def check_count(optimizer: keras.optimizers.Optimizer, count: int, state: State) -> None:
    """Raise `EasyScaleError` if a checkpoint has another number of variables of an optimizer.

    Args:
        optimizer: The model's optimizer.
        count: Int. The number of its variables.
        state: `State` of a checkpoint.
    """
    there = sum(name.startswith("optimizer/0/") for name in state.arrays)
    if there != count:
        raise EasyScaleError(
            f"a checkpoint must be of the same optimizers. Received: {there} variables in it, {count} of "
            f"'{optimizer.name}'. Use another folder for another optimizer"
        )


class StagedMetrics:
    """The states of the metrics of all pipelines, which are on their last stages.

    Before the first step of the last stage there are no metrics. A state that is loaded then is kept until `settle`.

    Args:
        model: The model.
        mesh: The `Mesh`.
    """

    def __init__(self, model: keras.Model, mesh: Mesh):
        self._along = mesh["model"]
        self._last, self._is_chief = self._along.size - 1, mesh.communicator.is_chief
        self._states = MetricStates(model, mesh["data"])
        self._is_built = False
        self._pending: State | None = None

    def describe(self) -> list[list] | None:
        """Return `MetricStates.describe` of the last stage; `None` before its first step."""
        return self._along.all_gather_object(self._states.describe())[self._last] if self._is_built else None

    def state(self) -> State:
        """Return the states, a row for each pipeline."""
        own = self._states.state()
        about = self._along.all_gather_object(own.about)[self._last]
        return State(about, broadcast_arrays(self._along, dict(own.arrays), root=self._last))

    def load(self, state: State) -> None:
        """Set the states that `state` returned; see `MetricStates.load`."""
        if not self._is_built:
            self._pending = state
        elif self._along.rank == self._last:
            self._states.load(state)

    def settle(self) -> None:
        """Restore a pending state, because there are metrics now."""
        pending, self._pending, self._is_built = self._pending, None, True
        if pending is None or self._along.rank != self._last:
            return
        here = self._states.describe()
        if pending.about == here and pending.arrays["metrics"].shape[1] == sum(size for *_, size in here):
            self._states.load(pending)
        elif pending.arrays["metrics"].any():
            warnings.warn(
                f"a checkpoint's metrics should be the model's. Received: {[name for _, name, _ in pending.about]} in "
                f"it, {[name for _, name, _ in here]} in the model. Those of this epoch are of the rest of it",
                EasyScaleWarning,
                stacklevel=2,
            )


class StageSeeds:
    """The random number generators of layers, such as dropout: they advance on the rank of their stage.

    Args:
        model: The model.
        cut: Its `Cut`.
        mesh: The `Mesh`.
    """

    def __init__(self, model: keras.Model, cut: Cut, mesh: Mesh):
        self._mesh = mesh
        stage_of = {id(variable): stage.number for stage in cut.stages for variable in stage.variables}
        generators = [variable for variable in model.variables if variable.name == "seed_generator_state"]
        self._generators = [(variable, stage_of.get(id(variable), 0)) for variable in generators]

    def state(self) -> State:
        """Return the states of this pipeline's generators, in the format of `Seeds.state`."""
        own = [backends.value_of(variable).tolist() for variable, _ in self._generators]
        stages = self._mesh["model"].all_gather_object(own)
        return State([[stages[stage][number]] for number, (_, stage) in enumerate(self._generators)])

    def load(self, state: State) -> None:
        """Set the states that `state` returned."""
        for (variable, _), (value, *_) in zip(self._generators, state.about, strict=True):
            variable.assign(value)

    def derive(self, state: State) -> None:
        """Derive this pipeline's random numbers from another's; those of the first stay as they are."""
        number = self._mesh["data"].rank
        for (variable, _), ((seed, count), *_) in zip(self._generators, state.about, strict=True):
            variable.assign([mix(seed, number) if number > 0 else seed, count])


class Stopping:
    """The `stop_training` flag, as a part of the training state.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model):
        self._model = model

    def state(self) -> State:
        return State({"stopped": bool(self._model.stop_training)})

    def load(self, state: State) -> None:
        self._model.stop_training = state.about["stopped"]
