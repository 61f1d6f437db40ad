"""State of layers outside of variables: vocabularies, bins, normalization constants.

Keras's preprocessing layers get it from `adapt()`. Models whose layers have different vocabularies are different
models, even if their weights are equal.
"""

import hashlib
import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from easyscale.communicator import Communicator
from easyscale.data import adapting
from easyscale.errors import DesyncError, EasyScaleWarning
from easyscale.keras_internals import layers_of
from easyscale.training.broadcast_arrays import broadcast_arrays
from easyscale.training.stateful import State

__all__ = ["LayerStates", "start_with_equal_layers"]


class LayerStates:
    """The state of a model's layers outside of variables, as a part of the training state.

    Args:
        model: The model.

    Attributes:
        layers: List of the layers with such state: those that can be adapted, and those that save files.
    """

    def __init__(self, model: keras.Model):
        self.layers = [layer for layer in layers_of(model) if _has_state(layer)]

    def state(self) -> State:
        """Return the state of all layers."""
        states = list(map(_state, self.layers))
        return State(
            [about for about, _ in states],
            {f"layers/{index}/{name}": array for index, (_, own) in enumerate(states) for name, array in own.items()},
        )

    def load(self, state: State) -> None:
        """Set the state of the layers to another worker's."""
        for index, (layer, about) in enumerate(zip(self.layers, state.about, strict=True)):
            start = f"layers/{index}/"
            own = {name.removeprefix(start): array for name, array in state.arrays.items() if name.startswith(start)}
            _load(layer, about, own)


def start_with_equal_layers(model: keras.Model, communicator: Communicator) -> bool:
    """Give all ranks the chief's state of layers if it differs, with a warning. All ranks must call this.

    Returns:
        Whether the state of a layer of this rank may have changed.

    Raises:
        DesyncError: If such a layer was built with different arguments, such as another vocabulary.
    """
    states = LayerStates(model)
    _check_arguments(states.layers, communicator)
    in_model = {*map(id, states.layers)}
    beside = {str(number): layer for number, layer in adapting.adapted().items() if id(layer) not in in_model}
    of_model = {str(index): layer for index, layer in enumerate(states.layers)}
    own = [{name: _digest(layer) for name, layer in layers.items()} for layers in (of_model, beside)]
    all_ranks = communicator.all_gather_object(own)
    found = _first_different([digests for _, digests in all_ranks])
    if found is not None and communicator.is_chief:
        _warn(beside[found[0]], found[1], "It is no layer of the model, so data that it has prepared differ")
    found = _first_different([digests for digests, _ in all_ranks])
    if found is None:
        return False
    if communicator.is_chief:
        _warn(of_model[found[0]], found[1], "All ranks have the chief's now")
    chiefs = states.state() if communicator.is_chief else State(None)
    about = communicator.all_gather_object(chiefs.about)[0]
    states.load(State(about, broadcast_arrays(communicator, chiefs.arrays, 0)))
    model.train_function = model.test_function = model.predict_function = None  # traced with the previous state
    return True


def _check_arguments(layers: Sequence[keras.layers.Layer], communicator: Communicator) -> None:
    own = {str(index): _digest_of_arguments(layer) for index, layer in enumerate(layers)}
    if found := _first_different(communicator.all_gather_object(own)):
        layer = layers[int(found[0])]
        raise DesyncError(
            f"layers must have the same arguments on all ranks. Received: {type(layer).__name__} '{layer.name}', which "
            f"has others on rank {found[1]} than on rank 0, such as the vocabulary of its part of the data. "
            "Compute them from all data, before `easyscale.shard`"
        )


def _digest_of_arguments(layer: keras.layers.Layer) -> str:
    try:
        config = {name: value for name, value in layer.get_config().items() if name not in ("name", "bin_boundaries")}
        text = json.dumps(config, sort_keys=True, default=_plain)
    except Exception:  # a custom layer that cannot be saved
        return ""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """Convert an array to a list, and anything else, such as a function, to a name that is the same on all ranks."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return getattr(value, "__qualname__", type(value).__qualname__)


def _first_different(digests: Sequence[dict[str, str]]) -> tuple[str, int] | None:
    """Return the first layer whose state differs from the chief's, with the rank; `None` if none does."""
    for rank, own in enumerate(digests):
        for name, chiefs in digests[0].items():
            if own.get(name, chiefs) != chiefs:
                return name, rank
    return None


def _warn(layer: keras.layers.Layer, rank: int, consequence: str) -> None:
    warnings.warn(
        f"layers must have the same state on all ranks. Received: {type(layer).__name__} '{layer.name}', which is "
        f"adapted to other data on rank {rank} than on rank 0. {consequence}. Call `adapt` before `easyscale.shard`, "
        "or with what `shard` returns: all ranks then adapt to all of it",
        EasyScaleWarning,
        stacklevel=2,
    )


def _has_state(layer: keras.layers.Layer) -> bool:
    return hasattr(layer, "adapt") or hasattr(layer, "save_assets")


def _digest(layer: keras.layers.Layer) -> str:
    about, arrays = _state(layer)
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=8)
    for array in arrays.values():
        digest.update(array.tobytes())
    return digest.hexdigest()


def _state(layer: keras.layers.Layer) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a layer's bins and files, for JSON, and its arrays."""
    store: dict[str, Any] = {}
    files: dict[str, str] = {}
    if layer.built:
        layer.save_own_variables(store)
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(layer, "save_assets"):
            layer.save_assets(folder)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                files[str(path.relative_to(folder))] = path.read_bytes().decode("latin-1")
    bins = getattr(layer, "bin_boundaries", None)
    about = {
        "bins": None if bins is None else [float(bound) for bound in bins],
        "files": files,
        "built": layer.get_build_config() if layer.built and store else None,
    }
    return about, {name: np.asarray(keras.ops.convert_to_numpy(value)) for name, value in store.items()}


def _load(layer: keras.layers.Layer, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    if about["bins"] is not None:
        layer.bin_boundaries = about["bins"]
    if about["built"] and not layer.built:
        layer.build_from_config(about["built"])
    if arrays:
        layer.load_own_variables(arrays)
    if about["files"]:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in about["files"].items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode("latin-1"))
            layer.load_assets(folder)
