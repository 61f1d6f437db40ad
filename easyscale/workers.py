"""Position of this process among the workers: functions that a script calls in addition to `fit()`.

Workers are the ranks of the default communicator, except those that only serve. A script started without a launcher is
the only worker. With in-graph replication a process has several workers, one for each of its devices.
"""

import contextlib
import importlib

from easyscale import called, communicator, mesh
from easyscale.errors import is_number
from easyscale.settings import Settings

__all__ = ["is_chief", "local_batch", "local_rank", "local_size", "rank", "scope", "size"]


def rank() -> int:
    """Return this worker's number, from 0 to `size() - 1`; in-graph, that of this process's first worker.

    Ranks that only serve have higher numbers.

    Example:

    >>> easyscale.rank()  # without a launcher
    0
    """
    called.note("rank")
    return communicator.get().rank // mesh.ranks_of_worker() * _devices()


def size() -> int:
    """Return the number of workers: the processes that train, times the devices that each of them drives.

    With `Distribute(model_parallel=...)` a worker may be a pipeline, or a group of processes that share a batch.

    Example:

    >>> easyscale.size()  # without a launcher
    1
    """
    called.note("size")
    return communicator.get().workers // mesh.ranks_of_worker() * _devices()


def local_rank() -> int:
    """Return this worker's number among the workers of its node, from 0 to `local_size() - 1`.

    Example:

    >>> easyscale.local_rank()  # without a launcher
    0
    """
    return communicator.get().local_rank * _devices()


def local_size() -> int:
    """Return the number of workers on this node.

    Example:

    >>> easyscale.local_size()  # without a launcher
    1
    """
    return communicator.get().local_size * _devices()


def is_chief() -> bool:
    """Return whether this is worker 0, which prints and writes files.

    In an elastic job, a process that replaces it is not the chief before it has joined. If a worker has several
    processes, a pipeline or group, the chief is the first one.

    Example:

    >>> if easyscale.is_chief():
    ...     model.save("model.keras")
    """
    called.note("is_chief")
    return communicator.get().is_chief


def local_batch(global_batch: int) -> int:
    """Return the `batch_size` for `fit()` in this process so that all workers together use `global_batch`.

    Args:
        global_batch: Int. The number of samples in one step of all workers.

    Raises:
        ValueError: If `global_batch` is not an integer, or not divisible by the number of workers. In an elastic job
            that has lost workers, the first of the remaining ones get one more sample instead.

    Example:

    >>> easyscale.local_batch(256)  # 64 on each of 4 workers
    256
    """
    if isinstance(global_batch, bool) or not is_number(global_batch, whole=True):
        near = f". Try {int(global_batch)}" if is_number(global_batch, 1) and not isinstance(global_batch, bool) else ""
        raise ValueError(f"`global_batch` must be an integer. Received: {global_batch=}{near}")
    importlib.import_module("easyscale.data.tf_dataset").install()
    global_batch, workers = int(global_batch), size()
    if communicator.get().membership.has_lost and global_batch >= workers:
        local = len(range(communicator.get().rank * _devices(), global_batch, workers))
        return called.note_local_batch(global_batch, local)
    if global_batch < 1 or global_batch % workers:
        below, above = global_batch // workers * workers, (global_batch // workers + 1) * workers
        near = f"{below} or {above}" if below > 0 else f"{workers}"
        raise ValueError(
            f"`global_batch` must be a positive multiple of the number of workers, {workers}. "
            f"Received: global_batch={global_batch}. Try {near}"
        )
    return called.note_local_batch(global_batch, global_batch // workers * _devices())


def scope() -> contextlib.AbstractContextManager:
    """Return the context in which to build and compile the model.

    In-graph, it is that of a `tf.distribute.MirroredStrategy` over this process's devices. Otherwise it does nothing.

    Example:

    >>> with easyscale.scope():
    ...     model = build_model()
    ...     model.compile("adam", "mse")
    """
    if Settings.read().replication in (None, "between_graph"):
        return contextlib.nullcontext()
    return importlib.import_module("easyscale.replication").get().scope()


def _devices() -> int:
    """Return the number of devices that each process drives, if it has been set; else 1."""
    said = Settings.read()
    return said.devices.count if said.devices is not None and said.replication == "in_graph" else 1
