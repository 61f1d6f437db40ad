"""The weights and the state of one stage, on a rank that never has those of other stages."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.communicator import Communicator
from easyscale.keras_internals import native_of
from easyscale.mesh import Mesh
from easyscale.parallel.pipeline.cut import Cut
from easyscale.parallel.pipeline.deferred import has_value, make, release
from easyscale.step import equality
from easyscale.training.pipelined.optimizer import StageOptimizer, build_whole, keyed
from easyscale.training.pipelined.start import differ_by_pipeline

__all__ = ["Needed", "OwnStage"]

Needed = tuple[keras.Variable, list[int]]  # a variable, and the stages that need it


class OwnStage:
    """Keeps on a rank only the weights of its stage, and the optimizer's state for these.

    Args:
        model: The model, built in the `scope()` of a pipeline.
        cut: The `Cut`.
        mesh: The `Mesh`, with the axes `"data"` and `"model"`.
    """

    def __init__(self, model: keras.Model, cut: Cut, mesh: Mesh):
        self._model, self._cut, self._mesh = model, cut, mesh
        self._backend = backends.get()
        self._has_state = True
        self._known: tuple[keras.optimizers.Optimizer | None, list[Needed]] = None, []
        self._users: dict[int, tuple[keras.Variable, list[int]]] = {}
        for stage in cut.stages:
            for variable in stage.used:
                self._users.setdefault(id(variable), (variable, []))[1].append(stage.number)

    @property
    def variables(self) -> list[Needed]:
        """Each weight, and each state of the model's optimizer that belongs to one, with the stages that need it.

        The list is the same on all ranks. The first of the stages trains the weight, and has the state.
        """
        return [*self._users.values(), *self._states()]

    @property
    def natives(self) -> list[int]:
        """The `id`s of the framework variables of this stage's weights: traced functions use these, and no others.

        They change if weights have moved to another rank and back, such as when another model has the same layers.
        """
        rank = self._mesh["model"].rank
        return [id(native_of(variable)) for variable, stages in self._users.values() if rank in stages]

    def start_equal(self) -> None:
        """Give all ranks their initial values. All ranks must call this.

        Values that the chief already has, or else another stage, such as from a file or an earlier `fit()`, are sent to
        the stage that needs them. Values that no rank has are created where they are needed. All pipelines start with
        the values of the first one.
        """
        along, across = self._mesh["model"], self._mesh["data"]
        states = self._states()
        _bring(along, list(self._users.values()), makes=True)
        _bring(along, states, makes=False)
        own = [variable for variable, stages in self.variables if along.rank in stages]
        has = across.all_gather_object([has_value(variable) for variable in own])[0]
        own = [variable for variable, has_one in zip(own, has, strict=True) if has_one]
        of_weights = {id(variable) for variable, _ in self.variables}
        common = [
            variable
            for variable in [*self._model.variables, *self._model.optimizer.variables]
            if id(variable) not in of_weights
        ]
        for variable in [*own, *common]:
            make(variable)
        equality.start_equal(across, self._backend, own)
        equality.start_equal(self._mesh.communicator, self._backend, common)
        differ_by_pipeline(self._model, across.rank)
        for variable, stages in self.variables:
            if along.rank not in stages:
                release(variable)
        self._has_state = True

    def settle(self) -> bool:
        """Send values that ranks have since received, but do not need, to their stages; return whether there were any.

        They were loaded, or belong to layers that another model has on that rank. All ranks must call this.
        """
        rank = self._mesh["model"].rank
        has_more = any(rank not in stages and has_value(variable) for variable, stages in self._users.values())
        if has_come := any(self._mesh.communicator.all_gather_object(has_more)):
            self.start_equal()
        return has_come

    def release(self) -> None:
        """Free the state in the model's optimizer, which the stage's optimizer has now."""
        if self._has_state:
            self._has_state = False
            for variable, _ in self._states():
                release(variable)

    def abandon(self, optimizer: StageOptimizer) -> None:
        """Leave an interrupted `fit()` without the other ranks: this one keeps what it has.

        Args:
            optimizer: The `StageOptimizer` of this rank's stage.
        """
        if not optimizer.distributed.is_sharded:
            self.keep(optimizer)

    def bring_together(self, optimizer: StageOptimizer) -> None:
        """Give the model's optimizer the state of this rank's stage, for files. All ranks must call this.

        Only in the first pipeline; there it takes no memory, unless the pipelines shard it.

        Args:
            optimizer: The `StageOptimizer` of this rank's stage.
        """
        build_whole(self._model)
        self._has_state = True
        if optimizer.distributed.is_sharded:
            self._assign(optimizer.state())
        elif self._mesh["data"].rank == 0:
            self.keep(optimizer)

    def keep(self, optimizer: StageOptimizer) -> None:
        """Give the model's optimizer the state that this rank has, which is not sharded. It takes no memory.

        Args:
            optimizer: The `StageOptimizer` of this rank's stage.
        """
        self._has_state = True
        build_whole(self._model)
        self._assign({key: variable.value for key, variable in optimizer.variables().items()})

    def _assign(self, state: Mapping[str, Any]) -> None:
        known = keyed(self._model.optimizer, self._model, self._model.trainable_variables)
        for key, value in state.items():
            if key in known:
                known[key].assign(value)

    def _states(self) -> list[Needed]:
        model, optimizer = self._model, self._model.optimizer
        if not optimizer.built:
            return []
        if self._known[0] is not optimizer:  # otherwise its variables are unchanged
            found = []
            for key, variable in keyed(optimizer, model, model.trainable_variables).items():
                number, _, _ = key.partition(" ")
                if number != "-":  # all stages have the states that belong to no weight
                    _, stages = self._users.get(id(model.trainable_variables[int(number)]), (variable, [0]))
                    found.append((variable, stages[:1]))
            self._known = optimizer, found
        return self._known[1]


def _bring(communicator: Communicator, needed: Sequence[Needed], makes: bool) -> None:
    """Send each variable to the stages that need it, from the first stage that has it. All stages must call this.

    Args:
        communicator: The `Communicator` of the stages.
        needed: List of variables and stages, the same on all.
        makes: Bool. Whether the first stage that needs a variable creates it if none has it.
    """
    has = communicator.all_gather_object([has_value(variable) for variable, _ in needed])
    for number, (variable, stages) in enumerate(needed):
        holders = [stage for stage, of_stage in enumerate(has) if of_stage[number]]
        source = holders[0] if holders else stages[0]
        if not holders and not makes:
            continue
        if communicator.rank == source:
            make(variable)
            value = np.ascontiguousarray(backends.view_of(variable))
            for stage in stages:
                if stage != source and value.size:
                    communicator.send(value.reshape(-1), stage)
        elif communicator.rank in stages:
            value = np.empty(variable.shape, np.dtype(variable.dtype))
            if value.size:
                communicator.receive(value.reshape(-1), source)
            variable.assign(value)
