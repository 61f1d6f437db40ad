"""`shard`: element `i` goes to worker `i % size`, for every kind of data."""

import warnings
from typing import Any

from easyscale import called
from easyscale import communicator as communicators
from easyscale.communicator import Communicator
from easyscale.data import (
    adapting,
    arrays,
    data_loader,
    division,
    fingerprints,
    keras_dataset,
    tf_dataset,
    validation_split,
)
from easyscale.errors import EasyScaleWarning

__all__ = ["shard"]

_DATASETS = tf_dataset, keras_dataset, data_loader


def shard(*data: Any, batched: bool | None = None, communicator: str | Communicator | None = None) -> Any:
    """Return this worker's part of the data: element `i` goes to worker `i % size`.

    Because elements are dealt round-robin, with `shuffle=False` the workers' `k`-th batches together are the `k`-th
    batch of one process. All workers must pass the same data in the same order: shuffle and split with a fixed seed, or
    after `shard`. `fit()` warns if they have not, as far as that shows in arrays and in a `tf.data.Dataset`.

    In an elastic job that keeps its global batch, each worker also keeps the full arrays and divides them again when
    workers fail or are replaced. The returned `keras.utils.PyDataset`, or `tf.data.Dataset` of batches, does the same.

    Args:
        *data: Arrays (NumPy, TensorFlow, pandas, SciPy, ...) or nested structures of them, all of the same length; or a
            `tf.data.Dataset`; or a `keras.utils.PyDataset`; or a PyTorch `DataLoader` that makes global batches, which
            is then shuffled in the same order on all workers.
        batched: Bool. Whether the elements of a `tf.data.Dataset` are batches; each batch is then divided. Defaults to
            `None`: they are if all components have the same first dimension, and it is either unknown or comes from
            `batch`. Prefer `shard(dataset).batch(...)` if you can: then the number of batches stays known.
        communicator: An argument of `easyscale.communicator.get`. Defaults to `None`.

    Returns:
        This worker's part of the argument, in the same form; a tuple for several arguments.

    Raises:
        ValueError: If there are fewer elements than workers, if arrays have different lengths, or if `batched` must be
            given.

    Example:

    >>> x, y = easyscale.shard(np.arange(6), np.arange(6) % 2)  # on worker 1 of 2
    >>> x
    array([1, 3, 5])
    """
    if not arrays.leaves(data):
        received = ", ".join(map(repr, data)) or "nothing"
        raise ValueError(f"`shard` must be given data. Received: {received}. Try `x, y = easyscale.shard(x, y)`")
    called.note("shard")
    comm = communicators.get(communicator)
    adapting.install()
    tf_dataset.install()
    workers = comm.workers // division.ranks_of_worker(comm)
    if workers > 1 and any(map(division.is_part, data)):
        warnings.warn(
            "data must be divided once. Received: a part that `shard` has returned, for `shard` to divide again: each "
            f"worker has {1 / workers**2:.1%} of the data. Leave one of them out",
            EasyScaleWarning,
            stacklevel=2,
        )
    arrays.check([argument for argument in data if not any(kind.owns(argument) for kind in _DATASETS)], workers)
    if workers > 1:
        fingerprints.note(data)
    parts = tuple(_part(argument, comm, batched) for argument in data)
    return parts if len(parts) > 1 else parts[0]


def _part(data: Any, comm: Communicator, batched: bool | None) -> Any:
    if tf_dataset.owns(data):
        return division.note_part(tf_dataset.part(data, comm, batched))
    if keras_dataset.owns(data):
        return division.note_part(keras_dataset.part(data, comm))
    if data_loader.owns(data):
        return division.note_part(data_loader.part(data, comm))
    first, size = division.position_of(comm)()
    part = arrays.part(data, first, size)
    if size > 1 and part is not None:
        division.note_part(part, division.Part(first, size, division.count(data)))
        validation_split.install()
    if comm.membership.keeps_global_batch:
        division.remember(part, data, comm.membership.initial_ranks[: comm.workers])
    return part
