"""Division among workers of the data that a script passes to `fit`, `evaluate` and `predict`."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from easyscale import called
from easyscale.communicator import Communicator
from easyscale.data import arrays, data_loader, division, keras_dataset, shard, tf_dataset
from easyscale.keras_internals import last_batch_of
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

_LOOKED_AT = 32  # rows of an array that are hashed to check that all workers have the same one
_shuffles = itertools.count()  # seeds a different order for each dataset without drawing from the script's generators
_OWN = " that each worker has drawn for itself, and takes its part of its own"


class Divided(NamedTuple):
    """The data that a worker gets in place of the script's.

    Attributes:
        x: Arrays, a dataset or a generator.
        y: Arrays, or `None`.
        sample_weight: Arrays, or `None`.
        about: String. A description of the data, for messages.
        is_part: Bool. Whether this is the worker's part, rather than all of the data. Defaults to `True`.
        are_arrays: Bool. Whether these are arrays, which Keras cuts into batches. Defaults to `False`.
    """

    x: Any
    y: Any
    sample_weight: Any
    about: str
    is_part: bool = True
    are_arrays: bool = False


def divide(x: Any, y: Any, sample_weight: Any, communicator: Communicator, trains: bool = False) -> Divided:
    """Return this worker's part of the data that every worker passes. Collective: all workers call this.

    Arrays are divided sample by sample. Datasets and generators are divided within each batch: the workers' parts
    together are the batch of one process. Data that each worker draws at random is divided the same way. Data that
    cannot be divided stays whole. If `trains`, each batch of a generator must have a sample for every worker.
    """
    with called.unnoted():
        if tf_dataset.owns(x):
            try:
                part = shard(x, batched=True)
            except TypeError:  # its elements have no rows, such as sparse tensors
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
    """Return undivided data: each worker gets all of it."""
    return Divided(x, y, sample_weight, about, is_part=False)


def _of_generator(x: Iterator, communicator: Communicator, trains: bool) -> Divided:
    batches = list(itertools.islice(x, 1))
    own = "" if are_same(batches, communicator) else _OWN
    part = _parts(itertools.chain(batches, x), *division.position_of(communicator)(), trains)
    return Divided(part, None, None, f"a generator, batch by batch{own}")


def _parts(batches: Iterator, rank: int, size: int, trains: bool) -> Iterator:
    """Yield this worker's part of each batch: element `i`, counted over all batches, goes to worker `i % size`."""
    before, last = 0, size
    for batch in batches:
        rows = division.count(batch)
        if trains and max(rows, last) < size:  # a single small batch may be the last of an epoch
            division.refuse_batches(rows, size)
        last = rows
        start = (rank - before) % size
        before += rows
        if start < rows:
            yield arrays.part(batch, start, size)


def batch_of(batch_size: int | None, steps: int | None, samples: int) -> int:
    """Return the batch size that Keras uses for arrays: without one, `steps` batches cover all samples.

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
    """Return the result of `divide` for a `fit()`, and the local batch if Keras makes the batches.

    Arrays whose batch size the workers do not divide evenly are divided batch by batch, and shuffled here.

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
    """Return the rows that `fit(validation_split=share)` trains on, and the last ones, which it holds out."""
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
    """Return rows `start` to `stop` of all arrays."""
    return tuple(
        arrays.transform(given, lambda array: (array.iloc if hasattr(array, "iloc") else array)[start:stop])
        for given in data
    )


def divide_evaluated(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None, communicator: Communicator
) -> tuple[Divided, int | None, int | None]:
    """Return the result of `divide` for an evaluation, the local batch and the number of steps.

    Batches must be those of one process, because Keras averages the losses of several outputs over batches. So arrays
    are divided batch by batch if a batch does not divide evenly. Every worker gets all data if there are fewer samples
    than workers, or `steps` batches with fewer, of which some workers would get none.
    """
    workers = communicator.workers
    if not are_arrays(x, y, sample_weight):
        rows, x = (None, x) if steps is None else _rows_of_batch(x)
        if rows is not None and rows < workers:
            return whole(x, y, sample_weight), None, steps
        return divide(x, y, sample_weight, communicator), None, steps
    x, y, sample_weight, size = seen(x, y, sample_weight, batch_size, steps)
    if division.count(x) < workers:
        return whole(x, y, sample_weight), size, None
    if size % workers and size > workers:
        return divide(_Batches(x, y, sample_weight, size), None, None, communicator), None, None
    return divide(x, y, sample_weight, communicator), max(1, size // workers), None


def _rows_of_batch(x: Any) -> tuple[int | None, Any]:
    """Return the number of samples in a batch of a dataset or generator, `None` if it is not known, and the data."""
    if is_generator(x):
        batches = list(itertools.islice(x, 1))
        return division.count(batches[0]) if batches else None, (batch for batch in itertools.chain(batches, x))
    if keras_dataset.owns(x):
        return division.count(x[0]), x
    return last_batch_of(x) if tf_dataset.owns(x) else None, x


def seen(x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None) -> tuple[Any, Any, Any, int]:
    """Return the rows of arrays that `steps` batches cover, and the batch size."""
    samples = division.count(x)
    size = batch_of(batch_size, steps, samples)
    if not steps or steps * size >= samples:
        return x, y, sample_weight, size
    x, y, sample_weight = _between((x, y, sample_weight), 0, steps * size)
    return x, y, sample_weight, size


class _Batches(keras.utils.PyDataset):
    """The batches of arrays, in order; with `shuffle`, in a new order for each pass, the same on all workers.

    As in Keras, floats are converted to `floatx`, and data frames to arrays. Sparse rows become dense.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any, size: int, shuffle: Any = False):
        super().__init__()
        if sample_weight is not None and keras.tree.is_nested(y) and not keras.tree.is_nested(sample_weight):
            sample_weight = keras.tree.map_structure(lambda _: sample_weight, y)  # as Keras does for arrays
        self._arrays, self._size, self._count = (x, y, sample_weight), size, division.count(x)
        self._shuffle, self._seed, self._passes = shuffle, [Settings.read().auto or 0, next(_shuffles)], 0
        self._order = np.arange(self._count)

    def _begin_pass(self) -> None:
        # A thread may start the next pass before this one ends, so the order depends on the pass number, not on time.
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
        return keras.utils.pack_x_y_sample_weight(*map(keras.tree.lists_to_tuples, parts))


def _as_keras_has_it(rows: Any) -> Any:
    if hasattr(rows, "toarray"):  # Keras takes sparse matrices as arrays only, not from a dataset
        rows = rows.toarray()
    if hasattr(rows, "to_numpy"):
        rows = rows.to_numpy() if rows.ndim > 1 else rows.to_numpy()[:, None]  # as Keras does with a Series
    kind = rows.dtype.kind if isinstance(rows, np.ndarray) else ""
    if kind == "f":
        return rows.astype(keras.config.floatx())
    return keras.ops.convert_to_tensor(rows.tolist()) if kind and kind in "OSU" else rows


def is_generator(data: Any) -> bool:
    """Return whether data can be iterated over only once."""
    return isinstance(data, Iterator)


def _specs(dataset: Any) -> str:
    """Return the tensor types in a dataset's elements, for messages."""
    names = {type(spec).__name__.replace("Spec", "") for spec in keras.tree.flatten(dataset.element_spec)}
    return " and ".join(sorted(names))


def are_arrays(*data: Any) -> bool:
    """Return whether all data are arrays with rows, or nested structures of them."""
    leaves = arrays.leaves(data)
    if any(keras_dataset.owns(leaf) or tf_dataset.owns(leaf) for leaf in leaves):
        return False
    return all(hasattr(leaf, "__len__") and hasattr(leaf, "__getitem__") for leaf in leaves)


def are_same(data: Any, communicator: Communicator) -> bool:
    """Return whether all workers have the same data, judged by a sample of rows. Collective."""
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
