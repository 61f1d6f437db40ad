"""`unshard`: the inverse of `shard`, which joins the workers' parts."""

from typing import Any

import numpy as np

from easyscale import communicator as communicators
from easyscale.communicator import Communicator
from easyscale.data import arrays, division

__all__ = ["unshard"]


def unshard(*parts: Any, communicator: str | Communicator | None = None) -> Any:
    """Return, on every worker, the full arrays that `shard` would divide into these parts.

    Use it for values that each worker has computed from its part of the data, in the same order: element `i` of the
    result comes from worker `i % size`. All workers must call it.

    Args:
        *parts: Arrays, or nested structures of them, with one row for each sample of this worker.
        communicator: An argument of `easyscale.communicator.get`. Defaults to `None`.

    Returns:
        The arguments as NumPy arrays of all workers' rows; a tuple for several arguments.

    Raises:
        ValueError: If the numbers of rows are not those of parts made by `shard`.

    Example:

    >>> predictions = easyscale.unshard(model.predict(easyscale.shard(x)))
    """
    if not parts:
        raise ValueError("`unshard` must be given arrays. Received: nothing. Try `easyscale.unshard(predictions)`")
    comm = communicators.get(communicator)
    whole = tuple(arrays.transform(part, lambda array: _join(np.asarray(array), comm)) for part in parts)
    return whole if len(whole) > 1 else whole[0]


def _join(part: np.ndarray, comm: Communicator) -> np.ndarray:
    ranks = division.ranks_of_worker(comm)
    workers = comm.workers // ranks
    all_ranks = comm.all_gather_object([part.dtype.str, *part.shape])
    descriptions = all_ranks[::ranks]
    lengths = [description[1] if len(description) > 1 else -1 for description in descriptions]
    total = sum(lengths[:workers])
    dealt = [len(range(worker % workers, total, workers)) for worker in range(len(lengths))]
    if lengths != dealt or any(
        [description[0], *description[2:]] != [descriptions[0][0], *descriptions[0][2:]] for description in descriptions
    ):
        raise ValueError(
            "`unshard` must be given each worker's part of one array, as `shard` divides it. Received: "
            + "; ".join(
                f"{np.dtype(dtype).name} of shape {tuple(shape)} on worker {rank}"
                for rank, (dtype, *shape) in enumerate(descriptions)
            )
            + ". Pass an array with a row for each sample of this worker's part"
        )
    if part.dtype.hasobject:
        raise TypeError(
            f"`unshard` must be given arrays of numbers. Received: {part.dtype}. Gather the rest by `all_gather_object`"
        )
    counts = [0] * comm.size  # only the first rank of each worker sends
    counts[::ranks] = lengths
    rows = comm.all_gather_parts(np.ascontiguousarray(part[: counts[comm.rank]]), counts)
    whole = np.empty_like(rows[:total])
    ends = np.cumsum([0, *lengths])
    for worker in range(workers):
        whole[worker::workers] = rows[ends[worker] : ends[worker + 1]]
    return whole
