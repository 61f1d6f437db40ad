"""Who this process is among the workers: the functions that a script calls beside `fit()`.

The workers are the ranks of the default communicator, without those that only serve. A script that no launcher started
is the only worker. With in-graph replication a process has several: one for each of its devices.
"""

import contextlib
import importlib

from easyscale import called, communicator, mesh
from easyscale.errors import is_number
from easyscale.settings import Settings

__all__ = ["is_chief", "local_batch", "local_rank", "local_size", "rank", "scope", "size"]


def rank() -> int:
    """Return this worker's number, from 0 to `size() - 1`; in-graph, that of the first one of this process.

    Ranks that only serve have the numbers after these.

    Example:

    >>> easyscale.rank()  # without a launcher
    0
    """
    called.note("rank")
    return communicator.get().rank // mesh.ranks_of_worker() * _devices()


def size() -> int:
    """Return the number of workers: of processes that train, times the devices that each of them drives.

    With `Distribute(model_parallel=...)` a worker may be a pipeline, or a group of processes that share a batch.

    Example:

    >>> easyscale.size()  # without a launcher
    1
    """
    called.note("size")
    return communicator.get().workers // mesh.ranks_of_worker() * _devices()


def local_rank() -> int:
    """Return this worker's number among those of its node, from 0 to `local_size() - 1`.

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
    """Return whether this is worker 0, the one that prints and writes files. What replaces it in an elastic job is not.

    Of a worker of several processes, a pipeline or group, it is the first one.

    Example:

    >>> if easyscale.is_chief():
    ...     model.save("model.keras")
    """
    called.note("is_chief")
    return communicator.get().is_chief


def local_batch(global_batch: int) -> int:
    """Return what `fit(batch_size=)` gets in this process so that all workers together use `global_batch`.

    Args:
        global_batch: Int. The number of samples in one step of all workers.

    Raises:
        ValueError: If `global_batch` is no integer, or cannot be divided by the number of workers. In an elastic job
            that has lost some, the first of those that are left get one sample more instead.

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
    """Return the context in which the model is built and compiled.

    In-graph it is that of a `tf.distribute.MirroredStrategy` over this process's devices. Between processes it does
    nothing.

    Example:

    >>> with easyscale.scope():
    ...     model = build_model()
    ...     model.compile("adam", "mse")
    """
    if Settings.read().replication in (None, "between_graph"):
        return contextlib.nullcontext()
    return importlib.import_module("easyscale.replication").get().scope()


def _devices() -> int:
    """The number of devices that each process drives, as far as it has been said."""
    said = Settings.read()
    return said.devices.count if said.devices is not None and said.replication == "in_graph" else 1
