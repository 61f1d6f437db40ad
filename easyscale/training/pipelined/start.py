"""The start of a `fit()` by pipelines: ranks agree on it, and get equal weights."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from easyscale import backend as backends
from easyscale import keras_internals
from easyscale.errors import DesyncError, EasyScaleWarning
from easyscale.mesh import Mesh
from easyscale.step import equality
from easyscale.training.callback_list import deciding_hooks
from easyscale.training.parts.layer_states import start_with_equal_layers
from easyscale.training.parts.randomness import mix
from easyscale.training.pipelined.optimizer import build_whole
from easyscale.training.same_model import check_same_layers, layer_facts
from easyscale.update.accumulated import unscaled

__all__ = [
    "Agreed",
    "agree",
    "agree_on_model",
    "differ_by_pipeline",
    "start_equal",
    "warn_of_own_state",
    "what_steps_depend_on",
]

# These read no weights.
_BLIND = (
    "CSVLogger",
    "History",
    "LearningRateScheduler",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "TerminateOnNaN",
)


class Agreed(NamedTuple):
    """The requirements of the callbacks of all ranks.

    Attributes:
        hooks: The step hooks in which some callback may decide something.
        looks: Bool. Whether some callback may read weights at the end of an epoch.
        looks_in_steps: Bool. Whether one may do so after each step.
    """

    hooks: set[str]
    looks: bool
    looks_in_steps: bool


def agree(model: keras.Model, mesh: Mesh, plan: Sequence[Any], hooks: list[str], callbacks: Sequence) -> Agreed:
    """Agree on the plan of all ranks, and on the first epoch.

    Args:
        model: The model. If its optimizer is built on some rank, it is built on all ranks.
        mesh: The `Mesh`.
        plan: Values that must be the same on all ranks, for JSON.
        hooks: The step hooks in which a callback of this rank may decide something.
        callbacks: List of this rank's callbacks.

    Raises:
        DesyncError: If the ranks' plans differ.
    """
    looking = [callback for callback in callbacks if _looks_at_weights(callback)]
    own = [list(plan), keras_internals.initial_epoch(model), hooks, bool(looking), bool(deciding_hooks(looking))]
    told = mesh.communicator.all_gather_object([*own, model.optimizer.built, layer_facts(model)])
    plans, first_epochs, all_hooks, look, look_in_steps, built, layers = zip(*told, strict=True)
    different = [rank for rank, other in enumerate(plans) if other != plans[0]]
    if different:
        raise DesyncError(
            "all ranks must train for the same epochs, by the same pipeline. Received: "
            f"{plans[0]} on rank 0, {plans[different[0]]} on rank {different[0]}. Run one script on all"
        )
    check_same_layers(layers)
    start_with_equal_layers(model, mesh.communicator)
    keras_internals.set_initial_epoch(model, first_epochs[0])  # BackupAndRestore may have set it on the chief
    if any(built):
        build_whole(model)
    return Agreed({hook for hooks_of_rank in all_hooks for hook in hooks_of_rank}, any(look), any(look_in_steps))


def agree_on_model(model: keras.Model, mesh: Mesh) -> None:
    """Check that a model is the same on all ranks, outside of a `fit()`; if its optimizer is built on some, build it.

    Args:
        model: The model.
        mesh: The `Mesh`.

    Raises:
        DesyncError: If the ranks' models differ.
    """
    told = mesh.communicator.all_gather_object([model.optimizer.built, layer_facts(model)])
    built, layers = zip(*told, strict=True)
    check_same_layers(layers)
    if any(built):
        build_whole(model)


def start_equal(model: keras.Model, mesh: Mesh) -> None:
    """Give all ranks the chief's weights and state, and each pipeline its own random numbers for dropout."""
    equality.start_equal(mesh.communicator, backends.get(), [*model.variables, *model.optimizer.variables])
    differ_by_pipeline(model, mesh["data"].rank)


def differ_by_pipeline(model: keras.Model, number: int) -> None:
    """Give a pipeline its own random numbers for dropout, derived from those of the first pipeline, which all have.

    Args:
        model: The model.
        number: Int. The number of the pipeline.
    """
    if number > 0:
        for variable in model.variables:
            if variable.name == "seed_generator_state":
                seed, count = backends.value_of(variable).tolist()
                variable.assign([mix(seed, number), count])


def what_steps_depend_on(model: keras.Model) -> list:
    """Return what stages depend on: while it is unchanged, stages traced in a `fit()` are reused in the next one."""
    weights = [(id(variable), variable.trainable) for variable in model.variables]
    optimizer = unscaled(model.optimizer)
    rate = keras_internals.learning_rate_of(optimizer)
    config = {name: value for name, value in optimizer.get_config().items() if name != "learning_rate"}
    loss = id(model.metrics[0])  # `compile` creates a new one
    return [weights, id(model.optimizer), id(rate), config, loss]


def warn_of_own_state(model: keras.Model, microbatches: int, mesh: Mesh) -> None:
    """Warn, on the chief, about a custom layer that may assign weights in each call, hence in each micro-batch.

    Args:
        model: The model.
        microbatches: Int. The number of micro-batches in a batch.
        mesh: The `Mesh`.
    """
    if microbatches == 1 or not mesh.communicator.is_chief:
        return
    for layer in keras_internals.layers_of(model):
        if isinstance(layer, keras.Model) or type(layer).__module__.startswith("keras.") or not layer.trainable:
            continue
        inner = {id(variable) for child in keras_internals.layers_of(layer)[1:] for variable in child.variables}
        own = [variable.name for variable in layer.non_trainable_variables if id(variable) not in inner]
        if own := [name for name in own if name != "seed_generator_state"]:
            warnings.warn(
                "what a layer assigns in `call` changes with each micro-batch of a pipeline. Received: "
                f"{type(layer).__name__} '{layer.name}', which has '{own[0]}'; microbatches={microbatches}. If it must "
                "change once a step, use `Pipeline(microbatches=1)`",
                EasyScaleWarning,
                stacklevel=2,
            )


def _looks_at_weights(callback: keras.callbacks.Callback) -> bool:
    if type(callback).__module__.startswith("easyscale.") or type(callback).__name__ in _BLIND:
        return False
    return bool(getattr(callback, "restore_best_weights", True))
