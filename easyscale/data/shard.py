"""`shard`: element `i` goes to worker `i % size`, whatever the data is."""

import warnings
from typing import Any

from easyscale import called
from easyscale import communicator as communicators
from easyscale.communicator import Communicator
from easyscale.data import adapting, arrays, data_loader, division, keras_dataset, tf_dataset, validation_split
from easyscale.errors import EasyScaleWarning

__all__ = ["shard"]

_DATASETS = tf_dataset, keras_dataset, data_loader


def shard(*data: Any, batched: bool | None = None, communicator: str | Communicator | None = None) -> Any:
    """Return this worker's part of the data: element `i` goes to worker `i % size`.

    Dealt out like cards, and with `shuffle=False`, the workers' `k`-th batches together are the `k`-th batch of one
    process. All workers must pass the same data in the same order: shuffle a `tf.data.Dataset` with a fixed seed, or
    after `shard`.

    In an elastic job that keeps its global batch each worker also keeps the whole of arrays, and divides it anew when
    workers fail or are replaced; so does what this returns for a `keras.utils.PyDataset`, or for a `tf.data.Dataset` of
    batches.

    Args:
        *data: Arrays (NumPy, TensorFlow, pandas, SciPy, ...) or nested structures of them, all of one length; or a
            `tf.data.Dataset`; or a `keras.utils.PyDataset`; or a PyTorch `DataLoader`, which has the batches of all
            workers together, and is shuffled in the same order on all.
        batched: Bool. Whether the elements of a `tf.data.Dataset` are batches, which are then divided, each by itself.
            Defaults to `None`: they are if all components agree in their first dimension, and either do not state it or
            come from `batch`. Prefer `shard(dataset).batch(...)` where there is a choice: the number of batches stays
            known.
        communicator: What `easyscale.communicator.get` takes. Defaults to `None`.

    Returns:
        What was passed, each with this worker's part; a tuple where several things were passed.

    Raises:
        ValueError: If there are fewer elements than workers, or arrays of different lengths; or if `batched` is needed.

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
