"""The building blocks of trips: collective moves of arrays between all ranks."""

from collections.abc import Sequence

import numpy as np

from easyscale.communicator import Communicator, Request

__all__ = ["Bounds", "gather", "join_columns", "others_of", "part_columns", "ranges", "sum_rows", "transfer"]

Bounds = Sequence[int]


def ranges(counts: Sequence[int]) -> list[slice]:
    """Return each rank's span among the rows of all, given the number that each has."""
    ends = np.cumsum(counts).tolist()
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def columns_of(bounds: Bounds) -> list[slice]:
    """Return the columns of each rank."""
    return [slice(start, stop) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]


def transfer(communicator: Communicator, sent: dict[int, np.ndarray], received: dict[int, np.ndarray]) -> None:
    """Send an array to each other rank, and receive one from each; empty ones are not sent."""
    requests: list[Request] = [communicator.ireceive(array, rank) for rank, array in received.items() if array.size]
    requests += [communicator.isend(np.ascontiguousarray(array), rank) for rank, array in sent.items() if array.size]
    for request in requests:
        request.wait()


def others_of(communicator: Communicator) -> list[int]:
    """Return all ranks but this one."""
    return [rank for rank in range(communicator.size) if rank != communicator.rank]


def gather(communicator: Communicator, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the rows of all ranks, concatenated."""
    own, spans = communicator.rank, ranges(counts)
    whole = np.empty((sum(counts), *rows.shape[1:]), rows.dtype)
    whole[spans[own]] = rows
    others = others_of(communicator)
    transfer(communicator, dict.fromkeys(others, rows), {rank: whole[spans[rank]] for rank in others})
    return whole


def sum_rows(communicator: Communicator, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the sum of all ranks' values for this rank's rows, added in rank order."""
    own, spans, others = communicator.rank, ranges(counts), others_of(communicator)
    arrived = {rank: np.empty((counts[own], *rows.shape[1:]), rows.dtype) for rank in others}
    transfer(communicator, {rank: rows[spans[rank]] for rank in others}, arrived)
    arrived[own] = rows[spans[own]]
    total = arrived[0].copy()
    for rank in range(1, communicator.size):
        total += arrived[rank]
    return total


def part_columns(communicator: Communicator, rows: np.ndarray, counts: Sequence[int], bounds: Bounds) -> np.ndarray:
    """Send each rank its columns of this rank's rows; return this rank's columns of the rows of all."""
    own, spans, columns = communicator.rank, ranges(counts), columns_of(bounds)
    others = others_of(communicator)
    result = np.empty((sum(counts), bounds[own + 1] - bounds[own]), rows.dtype)
    result[spans[own]] = rows[:, columns[own]]
    sent = {rank: rows[:, columns[rank]] for rank in others}
    transfer(communicator, sent, {rank: result[spans[rank]] for rank in others})
    return result


def join_columns(communicator: Communicator, rows: np.ndarray, counts: Sequence[int], bounds: Bounds) -> np.ndarray:
    """Send each rank its rows of this rank's columns; return all columns of this rank's rows."""
    own, spans, others = communicator.rank, ranges(counts), others_of(communicator)
    arrived = {rank: np.empty((counts[own], bounds[rank + 1] - bounds[rank]), rows.dtype) for rank in others}
    transfer(communicator, {rank: rows[spans[rank]] for rank in others}, arrived)
    arrived[own] = rows[spans[own]]
    return np.concatenate([arrived[rank] for rank in range(communicator.size)], axis=1)
