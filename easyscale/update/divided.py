"""Updates in which each rank has a part of the optimizer's state."""

import warnings
from collections.abc import Callable

import keras
import numpy as np

from easyscale.backend import value_of
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.errors import EasyScaleWarning
from easyscale.layout.specs import Spec
from easyscale.step.gradients import Gradients
from easyscale.update.base import Update
from easyscale.update.divided_state import DividedState, StateOfWholes
from easyscale.update.element_wise import is_of_keras
from easyscale.update.twin import Twin, forget, states_of

__all__ = ["DividedUpdate"]


class DividedUpdate(Update):
    """Divides an optimizer's state over ranks, from `begin` to `end`; subclasses define the step.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        connect: Function that returns the `Gradients`.
        whole: Bool. Whether each variable has a single owner, rather than an owner for each part. Defaults to `False`.
    """

    divides_state = True

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        connect: Callable[[], Gradients],
        whole: bool = False,
    ):
        super().__init__(optimizer, variables, connect)
        replication = self._replication = connect()
        self._compiles = is_of_keras(optimizer)  # XLA can compile it
        self._numbers = {id(variable): number for number, variable in enumerate(self._variables)}
        self._shards = replication.shard(self._variables, whole)
        slices, divided = self._shards.slices, {**self._shards.slices, **self._shards.groups}
        own = [tuple(variable.shape) for variable in self._variables]
        wholes = [divided[number].shape if number in divided else shape for number, shape in enumerate(own)]
        parts = [None if n in slices else (part.stop - part.start,) for n, part in enumerate(self._shards.parts)]
        self._twin = Twin(optimizer, self._variables, wholes if whole else parts)
        if whole:
            self._state: DividedState = StateOfWholes(self._twin, self._shards, wholes, replication.communicator)
        else:
            self._state = DividedState(self._twin, self._shards, wholes)
        self._lost = False
        self._paths: list[str] = []  # of the optimizer's variables
        self._collect_on_all = replication.on_state(self._collect)

    def begin(self) -> None:
        if self._lost:
            self._lost = False
            warnings.warn(
                f"the state of the optimizer '{self._optimizer.name}' starts anew: each worker had a part of it when "
                "an earlier `fit()` was interrupted. Use `BackupAndRestore` to go on with it",
                EasyScaleWarning,
                stacklevel=2,
            )
        if not self._optimizer.built:
            self._optimizer.build(self._variables)
        wholes = [value_of(state) for state in states_of(self._optimizer)]
        self._state.set(wholes)
        self._on_begin(wholes)
        self._paths = [variable.path for variable in self._optimizer.variables]
        forget(self._optimizer)
        self._replication.forget_updates()  # they refer to deleted variables
        self.active = True

    def _on_begin(self, wholes: list[np.ndarray]) -> None:
        """Do further work of `begin`, given the whole states."""

    def end(self) -> None:
        self._give_back(self._collect())

    def _give_back(self, wholes: list[np.ndarray]) -> None:
        """Return whole states to the optimizer, and give the weights their own memory."""
        self._optimizer.build(self._variables)
        for state, whole in zip(states_of(self._optimizer), wholes, strict=True):
            state.assign(whole)
        for variable in self._variables:
            variable.assign(value_of(variable))
        self.active = False

    def abandon(self, lost: bool = True) -> None:
        self._optimizer.build(self._variables)
        self.active, self._lost = False, lost

    def set(self, name: str, value: float | None) -> None:
        if name not in ("clipnorm", "global_clipnorm"):  # which `Twin.clip` reads from the optimizer
            setattr(self._twin.optimizer, name, value)

    # The whole state

    def _collect(self) -> list[np.ndarray]:
        return self._state.collect()

    @property
    def variables(self) -> list[keras.Variable]:
        return self._twin.optimizer.variables

    def state_specs(self) -> list[Spec]:
        return self._state.specs()

    def save_own_variables(self, store: dict) -> None:
        for index, value in enumerate(self._with_progress(self._collect_on_all())):
            store[str(index)] = value

    def collect(self, memory: SnapshotMemory) -> list[np.ndarray]:
        return self._with_progress(self._state.collect(0, memory))

    def _with_progress(self, wholes: list[np.ndarray]) -> list[np.ndarray]:
        states = iter(wholes)
        return [value_of(variable) if self._twin.is_progress(variable) else next(states) for variable in self.variables]

    def load_own_variables(self, store: dict) -> None:
        self.load([np.array(store[str(index)]) for index in range(len(self.variables))])

    def load(self, values: list[np.ndarray]) -> None:
        wholes = []
        for variable, value in zip(self.variables, values, strict=True):
            if self._twin.is_progress(variable):
                variable.assign(value)
            else:
                wholes.append(value)
        self._state.set(wholes)

    def state_tree(self, value_format: str) -> dict:
        """Return the optimizer's part of `Model.get_state_tree`. One rank may call this alone."""
        store: dict[str, np.ndarray] = {}
        tree: dict = {}
        self.save_own_variables(store)
        for index, path in enumerate(self._paths):
            *scopes, name = path.split("/")
            branch = tree
            for scope in scopes:
                branch = branch.setdefault(scope, {})
            value = store[str(index)]
            branch[name] = keras.ops.convert_to_tensor(value) if value_format == "backend_tensor" else value
        return tree
