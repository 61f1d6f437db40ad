"""A stage's optimizer: like the model's, for the stage's weights, and synchronized over all pipelines."""

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from easyscale.backend import value_of
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.keras_internals import copy_exclusions
from easyscale.optimizer import DistributedOptimizer
from easyscale.optimizers.nested import all_variables, inside
from easyscale.parallel.pipeline.deferred import defer_values, has_value, identified, is_deferred
from easyscale.update.accumulated import unscaled
from easyscale.update.element_wise import copy_of
from easyscale.update.twin import share_progress, states_of

__all__ = ["StageOptimizer", "build_whole", "keyed"]


class StageOptimizer:
    """The optimizer of one stage. It shares the step counter and the learning rate of the model's.

    Args:
        model: The model. If its optimizer is built, its state is copied.
        variables: The trainable variables of the stage.
        communicator: The `Communicator` of the ranks that have the same stage.
        options: Dict. Arguments of `DistributedOptimizer`.

    Attributes:
        distributed: The `DistributedOptimizer`.

    Raises:
        ValueError: If the exchange between pipelines does not wait for all of them.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        communicator: Communicator,
        options: Mapping[str, Any],
    ):
        inner = _copy_for_stage(model.optimizer)
        self.distributed = DistributedOptimizer(inner, communicator=communicator, **options)
        self.distributed.is_clipped_outside = bool(unscaled(model.optimizer).global_clipnorm)  # see `AllStages`
        if not self.distributed.is_synchronous:
            raise ValueError(
                "an exchange between pipelines must wait for all of them. Received: "
                f"exchange='{self.distributed.workers.gradients.exchange.name}'. Use 'ring'"
            )
        self.distributed.starts_equal = False  # the whole model starts equal instead
        self.distributed.build(variables)
        self._keys = list(keyed(inner, model, variables))
        self.load(model)

    def load(self, model: keras.Model) -> None:
        """Load the state of the model's optimizer, if it is built."""
        known = keyed(model.optimizer, model, model.trainable_variables) if model.optimizer.built else {}
        for key, state in zip(self._keys, _states(self.distributed.inner_optimizer), strict=True):
            if key in known and has_value(known[key]):
                state.assign(known[key])

    def state(self, memory: SnapshotMemory | None = None) -> dict[str, np.ndarray]:
        """Return the state by key, on the first of the ranks that have the stage. All of them must call this.

        Args:
            memory: `SnapshotMemory` for the copies. Defaults to `None`: new memory.
        """
        inner = self.distributed.inner_optimizer
        values = self.distributed.collect_state(SnapshotMemory() if memory is None else memory)
        if self.distributed.is_sharded:
            return dict(zip(self._keys, values[len(values) - len(self._keys) :], strict=True)) if values else {}
        by_id = dict(zip(map(id, all_variables(inner)), values, strict=False))
        return {key: by_id[id(state)] for key, state in zip(self._keys, _states(inner), strict=True)} if values else {}

    def own_state(self) -> dict[str, np.ndarray]:
        """Return the state by key, if it is not sharded. Keys are the same on all ranks."""
        states = _states(self.distributed.inner_optimizer)
        return {key: value_of(state) for key, state in zip(self._keys, states, strict=True)}

    def variables(self) -> dict[str, keras.Variable]:
        """Return the variables of the state, by key, if it is not sharded."""
        return dict(zip(self._keys, _states(self.distributed.inner_optimizer), strict=True))

    def scale(self) -> Any:
        """Return the factor by which gradients are larger than those of the loss; in a graph, as a tensor."""
        return self.distributed.inner_optimizer.scale_loss(1.0)


def _copy_for_stage(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return an optimizer like the model's that does not clip by the norm of all weights."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = _copy_for_stage(optimizer.inner_optimizer)
        return type(optimizer)(inner, optimizer.initial_scale, optimizer.dynamic_growth_steps)
    inner = copy_of(optimizer, clipnorm=optimizer.clipnorm)
    copy_exclusions(optimizer, inner)
    share_progress(optimizer, inner)
    return inner


def build_whole(model: keras.Model) -> None:
    """Build the model's optimizer for all of its variables, as Keras does in the first step.

    For a model that was built in a scope, this allocates no state.
    """
    optimizer = model.optimizer
    if optimizer.built:
        return
    with contextlib.ExitStack() as stack:
        if is_deferred(model):
            stack.enter_context(defer_values())
            stack.enter_context(identified())
        stack.enter_context(keras.name_scope(optimizer.name, caller=optimizer))
        optimizer.build(model.trainable_variables)


def _states(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return an optimizer's variables except step counters and learning rates, with those that Keras does not list."""
    progress: set[int] = set()
    for part in [optimizer, *inside(optimizer)]:
        progress |= {id(variable) for variable in part.variables} - {id(variable) for variable in states_of(part)}
    return [variable for variable in all_variables(optimizer) if id(variable) not in progress]


def keyed(
    optimizer: keras.optimizers.Optimizer, model: keras.Model, variables: list[keras.Variable]
) -> dict[str, keras.Variable]:
    """Return an optimizer's state by key: the model's number of the variable that it belongs to, and the state's name.

    An optimizer has lists of states, one for each variable. Other states have names that begin with a variable's path,
    in which the model's name may differ between ranks; those that belong to no variable are numbered.

    Args:
        optimizer: The optimizer, built.
        model: The model.
        variables: The variables of the model that the optimizer trains.
    """
    known = {id(variable): number for number, variable in enumerate(model.trainable_variables)}
    numbers = [known[id(variable)] for variable in variables]
    paths = [variable.path.replace("/", "_") + "_" for variable in variables]
    listed = _listed(optimizer, len(variables))
    found: dict[str, keras.Variable] = {}
    of_none = 0
    for state in _states(optimizer):
        index, name = listed.get(id(state), (-1, ""))
        fits = [number for number, path in enumerate(paths) if state.name.startswith(path)]
        if name:
            found[f"{numbers[index]} {name}"] = state
        elif fits:
            index = max(fits, key=lambda number: len(paths[number]))
            found[f"{numbers[index]} {state.name[len(paths[index]) :]}"] = state
        else:
            found[f"- {of_none}"] = state
            of_none += 1
    return found


def _listed(optimizer: keras.optimizers.Optimizer, count: int) -> dict[int, tuple[int, str]]:
    """Return, by `id`, the variable's index and the list's name of each state in a list with one state per variable.

    Names are ambiguous: layers in two parts of a model may share a name, and Adafactor's state has the variable's.
    """
    return {
        id(state): (index, name)
        for part in [optimizer, *inside(optimizer)]
        for name, states in vars(part).items()
        if isinstance(states, list) and len(states) == count and name not in ("_variables", "_trainable_variables")
        for index, state in enumerate(states)
    }
