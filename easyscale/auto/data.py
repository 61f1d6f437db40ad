"""What a worker gets of the data that a script passes to `fit`, `evaluate` and `predict`, which are those of all."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from easyscale import called
from easyscale.communicator import Communicator
from easyscale.data import arrays, data_loader, division, keras_dataset, shard, tf_dataset
from easyscale.settings import Settings
from easyscale.training.keras_fit import KERAS_BATCH

__all__ = [
    "Divided",
    "are_arrays",
    "are_same",
    "batch_of",
    "divide",
    "divide_evaluated",
    "divide_trained",
    "is_generator",
    "seen",
    "split_off",
    "whole",
]

_LOOKED_AT = 32  # rows of an array, by which it is seen whether all workers have the same one
_shuffles = itertools.count()  # makes of each data another order, without a draw of the script's generators
_OWN = " that each worker has drawn for itself, and takes its part of its own"


class Divided(NamedTuple):
    """What a worker gets in place of the data.

    Attributes:
        x: Arrays, a dataset or a generator.
        y: Arrays, or `None`.
        sample_weight: Arrays, or `None`.
        about: String. What the data are.
        is_part: Bool. Whether it is this worker's part; else all of the data. Defaults to `True`.
        are_arrays: Bool. Whether Keras makes batches of them. Defaults to `False`.
    """

    x: Any
    y: Any
    sample_weight: Any
    about: str
    is_part: bool = True
    are_arrays: bool = False


def divide(x: Any, y: Any, sample_weight: Any, communicator: Communicator, trains: bool = False) -> Divided:
    """Return this worker's part of what each worker has passed. All workers call this together.

    Arrays are divided sample by sample, and what yields batches batch by batch: those of all workers together are the
    batch of one process. Data that each worker draws at random for itself are divided in the same way. What cannot be
    divided stays whole. If it `trains`, batches of a generator must have a sample for each worker.
    """
    with called.unnoted():
        if tf_dataset.owns(x):
            try:
                part = shard(x, batched=True)
            except TypeError:  # what its batches consist of has no rows, such as sparse tensors
                return whole(x, y, sample_weight, f"a tf.data.Dataset of {_specs(x)}: each worker trains on all of it")
            return Divided(part, y, sample_weight, "a tf.data.Dataset, batch by batch")
        if keras_dataset.owns(x):
            own = "" if are_same(x[0], communicator) else _OWN
            return Divided(shard(x), y, sample_weight, f"a {type(x).__name__}, batch by batch{own}")
        if data_loader.owns(x):
            return Divided(shard(x), y, sample_weight, f"a {type(x).__name__}, batch by batch")
        if is_generator(x):
            return _of_generator(x, communicator, trains)
        if not are_arrays(x, y, sample_weight):
            return whole(x, y, sample_weight, f"a {type(x).__name__}: each worker draws its own batches")
        own = "" if are_same((x, y, sample_weight), communicator) else _OWN
        about = f"{division.count(x):,} samples{own}"
        x, y, sample_weight = shard(x, y, sample_weight)
        return Divided(x, y, sample_weight, about, are_arrays=True)


def whole(x: Any, y: Any, sample_weight: Any, about: str = "") -> Divided:
    """Return data that each worker has as they are."""
    return Divided(x, y, sample_weight, about, is_part=False)


def _of_generator(x: Iterator, communicator: Communicator, trains: bool) -> Divided:
    batches = list(itertools.islice(x, 1))
    own = "" if are_same(batches, communicator) else _OWN
    part = _parts(itertools.chain(batches, x), *division.position_of(communicator)(), trains)
    return Divided(part, None, None, f"a generator, batch by batch{own}")


def _parts(batches: Iterator, rank: int, size: int, trains: bool) -> Iterator:
    """Yield this worker's part of each batch: element `i` of all goes to worker `i % size`."""
    before, last = 0, size
    for batch in batches:
        rows = division.count(batch)
        if trains and max(rows, last) < size:  # one such batch may be the last of an epoch
            division.refuse_batches(rows, size)
        last = rows
        start = (rank - before) % size
        before += rows
        if start < rows:
            yield arrays.part(batch, start, size)


def batch_of(batch_size: int | None, steps: int | None, samples: int) -> int:
    """Return the samples in a batch that Keras makes of arrays: without a size, so many that `steps` go through them.

    Example:

    >>> batch_of(None, None, 203), batch_of(None, 4, 203), batch_of(16, 4, 203)
    (32, 51, 16)
    """
    if batch_size:
        return int(batch_size)
    return -(-samples // int(steps)) if steps else KERAS_BATCH


def divide_trained(
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    steps: int | None,
    shuffle: Any,
    communicator: Communicator,
) -> tuple[Divided, int | None]:
    """Return what `divide` does for a `fit()`, and the samples of a worker in a batch where Keras makes these.

    If the workers cannot divide a batch evenly, arrays are divided batch by batch, and shuffled here.

    Raises:
        ValueError: If a batch has fewer samples than there are workers.
    """
    if not are_arrays(x, y, sample_weight):
        return divide(x, y, sample_weight, communicator, trains=True), None
    samples, workers = division.count(x), communicator.workers
    size = batch_of(batch_size, steps, samples)
    arrays.check_samples(size, workers, " of each batch")
    if size % workers == 0:
        return divide(x, y, sample_weight, communicator), size // workers
    batches = _Batches(x, y, sample_weight, size, shuffle)
    divided = divide(batches, None, None, communicator)
    return divided._replace(about=f"{samples:,} samples, batch by batch of {size}"), None


def split_off(x: Any, y: Any, sample_weight: Any, share: float) -> tuple[tuple, tuple]:
    """Return what a `fit(validation_split=share)` trains on, and the end of the arrays that it holds out."""
    samples = division.count(x)
    trained = int(samples * (1.0 - share))
    if not 0 < trained < samples:
        raise ValueError(
            f"`validation_split` must leave samples to train on, and some to validate. Received: {samples} samples and "
            f"validation_split={share}"
        )

    data = x, y, sample_weight
    return _between(data, 0, trained), _between(data, trained, samples)


def _between(data: tuple, start: int, stop: int) -> tuple:
    """Return these rows of all arrays."""
    return tuple(
        arrays.transform(given, lambda array: (array.iloc if hasattr(array, "iloc") else array)[start:stop])
        for given in data
    )


def divide_evaluated(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None, communicator: Communicator
) -> tuple[Divided, int | None, int | None]:
    """Return what `divide` does for an evaluation, with the samples of a worker in a batch, and its steps.

    Batches are those of one process: of losses of several outputs, Keras takes the mean over batches. So arrays are
    divided batch by batch if a batch cannot be divided evenly. Of fewer samples than workers each worker has all.
    """
    workers = communicator.workers
    if not are_arrays(x, y, sample_weight):
        return divide(x, y, sample_weight, communicator), None, steps
    x, y, sample_weight, size = seen(x, y, sample_weight, batch_size, steps)
    if division.count(x) < workers:
        return whole(x, y, sample_weight), size, None
    if size % workers and size > workers:
        return divide(_Batches(x, y, sample_weight, size), None, None, communicator), None, None
    return divide(x, y, sample_weight, communicator), max(1, size // workers), None


def seen(x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None) -> tuple[Any, Any, Any, int]:
    """Return the rows of arrays that so many steps go through, and the samples in a batch."""
    samples = division.count(x)
    size = batch_of(batch_size, steps, samples)
    if not steps or steps * size >= samples:
        return x, y, sample_weight, size
    x, y, sample_weight = _between((x, y, sample_weight), 0, steps * size)
    return x, y, sample_weight, size


class _Batches(keras.utils.PyDataset):
    """The batches of arrays, in their order; with `shuffle` in another one in each pass, the same on all workers.

    They are what Keras makes of arrays: of its `floatx`, and without the index of a data frame.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any, size: int, shuffle: Any = False):
        super().__init__()
        if sample_weight is not None and keras.tree.is_nested(y) and not keras.tree.is_nested(sample_weight):
            sample_weight = keras.tree.map_structure(lambda _: sample_weight, y)  # as Keras does with arrays
        self._arrays, self._size, self._count = (x, y, sample_weight), size, division.count(x)
        self._shuffle, self._seed, self._passes = shuffle, [Settings.read().auto or 0, next(_shuffles)], 0
        self._order = np.arange(self._count)

    def _begin_pass(self) -> None:
        # A thread may ask for the next pass before this one ends, so its number says the order, not when it begins.
        self._passes += 1
        random = np.random.default_rng([*self._seed, self._passes])
        if self._shuffle == "batch":
            whole, rest = self._count // self._size, self._count // self._size * self._size
            in_batches = np.arange(rest).reshape(whole, self._size)[random.permutation(whole)].reshape(-1)
            self._order = np.concatenate([in_batches, np.arange(rest, self._count)])
        elif self._shuffle:
            self._order = random.permutation(self._count)

    @property
    def num_batches(self) -> int:
        return -(-self._count // self._size)

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            self._begin_pass()
        chosen = self._order[index * self._size : (index + 1) * self._size]
        parts = (arrays.transform(division.rows(given, chosen), _as_keras_has_it) for given in self._arrays)
        return keras.utils.pack_x_y_sample_weight(*parts)


def _as_keras_has_it(rows: Any) -> Any:
    rows = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    kind = rows.dtype.kind if isinstance(rows, np.ndarray) else ""
    if kind == "f":
        return rows.astype(keras.config.floatx())
    return keras.ops.convert_to_tensor(rows.tolist()) if kind and kind in "OSU" else rows


def is_generator(data: Any) -> bool:
    """Return whether data can be gone through once."""
    return isinstance(data, Iterator)


def _specs(dataset: Any) -> str:
    """Return of what kinds of tensors a dataset's elements consist."""
    names = {type(spec).__name__.replace("Spec", "") for spec in keras.tree.flatten(dataset.element_spec)}
    return " and ".join(sorted(names))


def are_arrays(*data: Any) -> bool:
    """Return whether all data are arrays, or nested structures of them, that have rows."""
    leaves = arrays.leaves(data)
    if any(keras_dataset.owns(leaf) or tf_dataset.owns(leaf) for leaf in leaves):
        return False
    return all(hasattr(leaf, "__len__") and hasattr(leaf, "__getitem__") for leaf in leaves)


def are_same(data: Any, communicator: Communicator) -> bool:
    """Return whether all workers have the same data, as far as some rows tell."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in arrays.leaves(data):
        count, rows = division.count(leaf), leaf.iloc if hasattr(leaf, "iloc") else leaf
        digest.update(f"{count}".encode())
        for index in np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(int)):
            digest.update(_bytes(rows[index]))
    return len({*communicator.all_gather_object(digest.hexdigest())}) == 1


def _bytes(row: Any) -> bytes:
    array = np.asarray(keras.ops.convert_to_numpy(row) if keras.ops.is_tensor(row) else row)
    return repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
