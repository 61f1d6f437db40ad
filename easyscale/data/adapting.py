"""`layer.adapt(...)` of preprocessing layers on data that `shard` has divided.

Keras's guides adapt a layer on the training data. After `shard` this is one worker's part, and each worker would get a
different vocabulary, bins or mean. So if a layer is adapted on a worker's part, all workers gather the parts, and each
adapts its layer on all of them, as one process would.
"""

import functools
import inspect
import itertools
import json
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from easyscale import communicator as communicators
from easyscale.communicator import Communicator
from easyscale.data import division, keras_dataset, tf_dataset
from easyscale.when_imported import when_imported

if TYPE_CHECKING:
    import keras

__all__ = ["adapted", "install"]

_LAYERS = ("Discretization", "IntegerLookup", "Normalization", "StringLookup", "TextVectorization")

_adapted: list[weakref.ref] = []  # the layer of each call of `adapt`


@functools.cache
def install() -> None:
    """Patch Keras's preprocessing layers to adapt on the parts of all workers, also if Keras is imported later."""
    when_imported("keras", _replace)


def adapted() -> dict[int, "keras.layers.Layer"]:
    """Return the layers on which `adapt` was called since the first `shard`, by the index of the call.

    Layers that have been garbage-collected are left out.
    """
    layers = {number: found() for number, found in enumerate(_adapted)}
    return {number: layer for number, layer in layers.items() if layer is not None}


def _replace() -> None:
    import keras

    for layer_class in (getattr(getattr(keras, "layers", None), name, None) for name in _LAYERS):
        if layer_class is not None:
            layer_class.adapt = _over_all(layer_class.adapt)


def _over_all(original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def adapt(layer: Any, data: Any, *args: Any, **kwargs: Any) -> None:
        _adapted.append(weakref.ref(layer))
        communicator = communicators.get()
        if communicator.membership.is_joining:  # the other workers adapted their layers before it joined
            if division.is_part(data) and (known := division.whole_of(data)) is not None:
                (data,) = known.data
        elif communicator.workers > 1 and division.is_part(data):
            if tf_dataset.owns(data):
                given = signature.bind(layer, data, *args, **kwargs).arguments
                data = tf_dataset.of_all(data, lambda own: _gathered(own, communicator), given.pop("steps", None))
                args, kwargs = (), {name: value for name, value in given.items() if name not in ("self", "data")}
            elif keras_dataset.owns(data):
                batches = [_first(data[index]) for index in range(data.num_batches or 0)]
                data = np.concatenate(list(itertools.chain(*_gathered(batches, communicator))))
            else:
                data = _rows_of_all(data, communicator)
        original(layer, data, *args, **kwargs)

    return adapt


def _first(batch: Any) -> np.ndarray:
    return _array(batch[0] if isinstance(batch, tuple) else batch)


def _array(part: Any) -> np.ndarray:
    import keras

    return keras.ops.convert_to_numpy(part) if keras.ops.is_tensor(part) else np.asarray(part)


def _rows_of_all(part: Any, communicator: Communicator) -> np.ndarray:
    """Return all rows of the array that a part was taken from, in order."""
    array = _array(part)
    parts = [rows for (rows,) in _gathered([array], communicator)]
    total = sum(map(len, parts))
    if any(len(rows) != len(range(worker, total, len(parts))) for worker, rows in enumerate(parts)):
        return np.concatenate(parts)  # the parts are views with other rows
    whole = np.empty((total, *array.shape[1:]), array.dtype)
    for worker, rows in enumerate(parts):
        whole[worker :: len(parts)] = rows
    return whole


def _gathered(own: list[np.ndarray], communicator: Communicator) -> list[list[np.ndarray]]:
    """Return the arrays of each worker, which may be strings. Collective: all ranks call this."""
    ranks = division.ranks_of_worker(communicator)
    about, packed = [], []
    for array in own:
        texts = array.dtype.kind in "OSU"
        packed.append(_as_json(array).encode() if texts else np.ascontiguousarray(array).tobytes())
        about.append(["" if texts else array.dtype.str, list(array.shape), len(packed[-1])])
    described = communicator.all_gather_object(about)
    counts = [sum(size for _, _, size in arrays) for arrays in described]
    buffer = communicator.all_gather_parts(np.frombuffer(b"".join(packed), np.uint8), counts)
    gathered, start = [], 0
    for rank, arrays in enumerate(described):
        end, found = start + counts[rank], []
        for dtype, shape, size in arrays:
            data = buffer[start : start + size].tobytes()
            array = np.frombuffer(data, dtype) if dtype else np.array(_from_json(data.decode()), object)
            found.append(array.reshape(shape))
            start += size
        start = end
        if rank < communicator.workers and rank % ranks == 0:
            gathered.append(found)
    return gathered


def _as_json(texts: np.ndarray) -> str:
    """Return strings as JSON. Bytes, which may not be UTF-8, are encoded as Latin-1 characters."""
    return json.dumps([text.decode("latin-1") if isinstance(text, bytes) else [str(text)] for text in texts.flat])


def _from_json(text: str) -> list:
    return [found.encode("latin-1") if isinstance(found, str) else found[0] for found in json.loads(text)]
