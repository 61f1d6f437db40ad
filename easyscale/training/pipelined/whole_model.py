"""The whole model on every rank: each stage's weights, and its optimizer's state, from the rank that has them."""

import warnings
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.errors import EasyScaleWarning
from easyscale.mesh import Mesh
from easyscale.parallel.pipeline.cut import Cut
from easyscale.training.pipelined.optimizer import StageOptimizer, build_whole, keyed
from easyscale.training.pipelined.start import start_equal
from easyscale.update.accumulated import unscaled
from easyscale.update.twin import forget

__all__ = ["WholeModel"]


class WholeModel:
    """Gathers the stages of a pipeline on each rank, and frees all but the rank's own.

    Args:
        model: The model. It is whole.
        cut: The `Cut`.
        mesh: The `Mesh`, with the axes `"data"` and `"model"`.

    Attributes:
        is_whole: Bool. Whether this rank has the current values of all weights.
        natives: Empty: the framework variables of weights do not change.
    """

    natives: tuple[int, ...] = ()

    def __init__(self, model: keras.Model, cut: Cut, mesh: Mesh):
        self._model, self._stages, self._mesh = model, cut.stages, mesh
        self._communicator = mesh["model"]
        self._backend = backends.get()
        used = set(map(id, cut.stages[self._communicator.rank].used))
        self._others = [variable for stage in cut.stages for variable in stage.variables if id(variable) not in used]
        self._has_others = self._has_state = self.is_whole = True

    def start_equal(self) -> None:
        """Give all ranks the chief's weights and state. All ranks must call this."""
        start_equal(self._model, self._mesh)
        self.is_whole = True

    def release(self) -> None:
        """Free the weights of other stages on this rank, and state that its stage's optimizer has."""
        self.is_whole = False
        if self._has_others:
            self._has_others = False
            for variable in self._others:
                self._backend.hold(variable, None)
        if self._has_state and not isinstance(self._model.optimizer, keras.optimizers.LossScaleOptimizer):
            forget(self._model.optimizer)
        self._has_state = False

    def abandon(self, optimizer: StageOptimizer) -> None:
        """Give the weights of other stages a value without communication: NaN."""
        if not self._has_others:
            self._has_others = True
            warnings.warn(
                "the weights of other stages are NaN on this rank, because `fit()` was interrupted. Load them from a "
                "file before you go on",
                EasyScaleWarning,
                stacklevel=2,
            )
            for variable in self._others:
                dtype = np.dtype(variable.dtype)
                nothing = np.nan if keras.backend.is_float_dtype(variable.dtype) else 0
                self._backend.hold(variable, np.full(variable.shape, nothing, dtype))

    def bring_together(self, optimizer: StageOptimizer) -> None:
        """Gather all weights on all ranks, and the optimizer's state in the chief's model. All ranks must call this.

        With averages of weights, which a callback may swap in, all ranks get the state.

        Args:
            optimizer: The `StageOptimizer` of this rank's stage.
        """
        if not self.is_whole:
            self.gather_weights()
            averages = unscaled(self._model.optimizer).use_ema  # then it is not sharded
            is_first = self._mesh["data"].rank == 0 and ("split" not in self._mesh.axes or not self._mesh["split"].rank)
            self.gather_state(optimizer, complete=averages, is_needed=averages or is_first)
            self.is_whole = True

    def give_back(self, optimizer: StageOptimizer) -> None:
        """Load the model's averages into a stage's optimizer: a callback may have changed them since the gather.

        Args:
            optimizer: The `StageOptimizer` of this rank's stage.
        """
        if self.is_whole and unscaled(self._model.optimizer).use_ema:
            optimizer.load(self._model)

    def keep(self, optimizer: StageOptimizer) -> None:
        """End a `fit()`: gather all weights and all state, which is not sharded, everywhere. All ranks must call this.

        Args:
            optimizer: The `StageOptimizer` of this rank's stage.
        """
        if not self.is_whole:
            self.gather_weights()
        self.gather_state(optimizer, complete=True, is_needed=True)
        self.is_whole = True

    def gather_weights(self) -> None:
        """Gather the weights of all stages on every rank. All ranks of a pipeline must call this."""
        self._has_others = True
        for stage in self._stages:
            for variable in stage.variables:
                if stage.number == self._communicator.rank:
                    self._broadcast(backends.view_of(variable), stage.number)
                else:
                    value = np.empty(variable.shape, np.dtype(variable.dtype))
                    self._backend.hold(variable, self._broadcast(value, stage.number))

    def gather_state(self, optimizer: StageOptimizer, complete: bool, is_needed: bool) -> None:
        """Gather the state of all stages in the model's optimizer. All ranks of all pipelines must call this.

        Args:
            optimizer: The `StageOptimizer` of this rank's stage.
            complete: Bool. Whether the optimizers' states are whole, on all ranks.
            is_needed: Bool. Whether this pipeline's ranks need it.
        """
        state = optimizer.own_state() if complete else optimizer.state()
        if not is_needed:
            return
        self._has_state = True
        build_whole(self._model)
        variables = keyed(self._model.optimizer, self._model, self._model.trainable_variables)
        forms: list[list[Any]] = [[name, list(value.shape), value.dtype.name] for name, value in state.items()]
        for stage, all_forms in enumerate(self._communicator.all_gather_object(forms)):
            for name, shape, dtype in all_forms:
                own = state.pop(name) if stage == self._communicator.rank else np.empty(shape, dtype)
                value = self._broadcast(own, stage)
                if name in variables:  # all stages have the states that belong to no weight
                    self._backend.hold(variables.pop(name), value)
        assert not variables, f"no stage has the state {', '.join(variables)}"

    def _broadcast(self, value: np.ndarray, root: int) -> np.ndarray:
        buffer = np.array(value, order="C")
        if buffer.size:
            self._communicator.broadcast(buffer.reshape(-1), root)
        return buffer
