"""The begin of a `fit()` by pipelines: ranks agree on it, and have the same weights."""

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

# These look at no weights.
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
    """What the callbacks of all ranks need.

    Attributes:
        hooks: The hooks of a step in which some callback may decide something.
        looks: Bool. Whether some callback may look at weights at the end of an epoch.
        looks_in_steps: Bool. Whether one may do so behind each step.
    """

    hooks: set[str]
    looks: bool
    looks_in_steps: bool


def agree(model: keras.Model, mesh: Mesh, plan: Sequence[Any], hooks: list[str], callbacks: Sequence) -> Agreed:
    """Agree on what the ranks do, and with which epoch they begin.

    Args:
        model: The model. If its optimizer is built on some rank, it is afterwards on all.
        mesh: The `Mesh`.
        plan: What must be the same on all ranks, for JSON.
        hooks: The hooks of a step in which a callback of this rank may decide something.
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
    keras_internals.set_initial_epoch(model, first_epochs[0])  # which BackupAndRestore may have set, on the chief
    if any(built):
        build_whole(model)
    return Agreed({hook for hooks_of_rank in all_hooks for hook in hooks_of_rank}, any(look), any(look_in_steps))


def agree_on_model(model: keras.Model, mesh: Mesh) -> None:
    """Agree on what a model is that is cut outside of a `fit()`; if its optimizer is built on some rank, build it.

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
    """Give all ranks the chief's weights and state, and each pipeline random numbers of its own for dropout."""
    equality.start_equal(mesh.communicator, backends.get(), [*model.variables, *model.optimizer.variables])
    differ_by_pipeline(model, mesh["data"].rank)


def differ_by_pipeline(model: keras.Model, number: int) -> None:
    """Give a pipeline random numbers of its own for dropout. All pipelines have those of the first.

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
    """Return what stages depend on: while it is the same, what was traced in a `fit()` stays for the next."""
    weights = [(id(variable), variable.trainable) for variable in model.variables]
    optimizer = unscaled(model.optimizer)
    rate = keras_internals.learning_rate_of(optimizer)
    config = {name: value for name, value in optimizer.get_config().items() if name != "learning_rate"}
    loss = id(model.metrics[0])  # which `compile` makes anew
    return [weights, id(model.optimizer), id(rate), config, loss]


def warn_of_own_state(model: keras.Model, microbatches: int, mesh: Mesh) -> None:
    """Warn, on the chief, of a layer of the user's own that may assign something in each call: micro-batches are many.

    Args:
        model: The model.
        microbatches: Int. The parts of a batch.
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
