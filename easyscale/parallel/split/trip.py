"""How the rows of all workers come to the owners of a layer's slices, and results back. NumPy only.

A row is what a layer computes something of: a sample, or a position in a sequence. Worker `r` has `m_r` of them.
"""

import abc
from collections.abc import Sequence

import numpy as np

from easyscale.communicator import Communicator, Request
from easyscale.layout.sliced import bounds_of

__all__ = ["Columns", "Lookup", "Rows", "Trip"]

Bounds = Sequence[int]


class Trip(abc.ABC):
    """One way to the owners and back, and that of its gradients, in this order.

    Args:
        communicator: The `Communicator`. All ranks call each method alike.
        length: Int. Of the axis that is divided over ranks.
        unit: Int. The columns of rows that belong to one index of it. Defaults to `1`.
    """

    def __init__(self, communicator: Communicator, length: int, unit: int = 1):
        self._communicator = communicator
        self._bounds = [unit * bound for bound in bounds_of(length, communicator.size)]
        self._counts: list[int] = []  # the rows of each rank

    @staticmethod
    @abc.abstractmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        """Return the bytes that a rank sends in a step.

        Args:
            into: Number. The bytes of a worker's rows.
            out: Number. The bytes of what comes back for them.
            ranks: Int. The number of ranks.
            has_gradient: Bool. Whether something before the layer needs the gradient by the rows. Defaults to `True`.
        """

    @abc.abstractmethod
    def width_at_owner(self, width: int) -> int:
        """Return how wide the rows are that come to this owner, of workers' rows of a width."""

    @abc.abstractmethod
    def width_at_worker(self, width: int) -> int:
        """Return how wide the rows are that come back to a worker, of this owner's rows of a width."""

    @abc.abstractmethod
    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        """Give this worker's rows to the owners; return what comes to this owner."""

    @abc.abstractmethod
    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        """Give what this owner has computed to the workers; return what comes to this worker, a row for each."""

    @abc.abstractmethod
    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        """Give the owners the gradients by what `to_workers` has returned; return those by what it was given."""

    @abc.abstractmethod
    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        """Give the workers the gradients by what `to_owners` has returned; return those by what it was given."""

    def _count(self, rows: np.ndarray) -> None:
        self._counts = self._communicator.all_gather_rows(np.array([len(rows)]))[:, 0].tolist()


class Columns(Trip):
    """Every owner has some columns of the result, for the rows of all workers.

        worker 0  x0 ---+---> owner 0  [x0; x1] w[:, :c]  --+---> worker 0  [y0 | y0]
                         X                                   X
        worker 1  x1 ---+---> owner 1  [x0; x1] w[:, c:]  --+---> worker 1  [y1 | y1]

    With `P` ranks, rows of `a` bytes in and `b` bytes out on each worker, a rank sends in a step

        (P - 1) a          the rows, to each other owner
        (P - 1) b / P      some columns of the results, to each other worker
        (P - 1) b / P      the gradients by them
        (P - 1) a          the gradients by the rows, to each worker its own, where they are summed up

    in `4 (P - 1)` messages: less than the `2 (P - 1) / P W` of `W` bytes of weights, if `P a + b < W`. Gradients by
    rows that nothing before the layer needs, as in the first layer, are not sent.

    Reference: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.
    """

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        return (ranks - 1) * ((1 + has_gradient) * into + 2 * out / ranks)

    def width_at_owner(self, width: int) -> int:
        return width

    def width_at_worker(self, width: int) -> int:
        return self._bounds[-1]

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        self._count(rows)
        return _gather(self._communicator, rows, self._counts)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        return _join_columns(self._communicator, rows, self._counts, self._bounds)

    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        return _part_columns(self._communicator, rows, self._counts, self._bounds)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        return _sum_rows(self._communicator, rows, self._counts)


class Rows(Trip):
    """Every owner computes of some columns of the input a summand of the result, for the rows of all workers.

        worker 0  [x0 | x0] ---+---> owner 0  [x0; x1][:, :c] w[:c]  --+---> worker 0  y0 + y0
                                X                                       X
        worker 1  [x1 | x1] ---+---> owner 1  [x0; x1][:, c:] w[c:]  --+---> worker 1  y1 + y1

    What `Columns` does, the other way round: a rank sends `2 (P - 1) (a / P + b)` bytes in a step, in `4 (P - 1)`
    messages; without the gradients by the rows `(P - 1) a / P` less.
    """

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        return (ranks - 1) * ((1 + has_gradient) * into / ranks + 2 * out)

    def width_at_owner(self, width: int) -> int:
        rank = self._communicator.rank
        return self._bounds[rank + 1] - self._bounds[rank]

    def width_at_worker(self, width: int) -> int:
        return width

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        self._count(rows)
        return _part_columns(self._communicator, rows, self._counts, self._bounds)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        return _sum_rows(self._communicator, rows, self._counts)

    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        return _gather(self._communicator, rows, self._counts)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        return _join_columns(self._communicator, rows, self._counts, self._bounds)


class Lookup(Trip):
    """Every owner has some rows of a table; a number comes to the owner of its row, and the row goes back.

        worker 0  [7 1] ---+---> owner 0  rows 0 to 4:  1 2  --+---> worker 0  [row 7, row 1]
                            X                                   X
        worker 1  [2 9] ---+---> owner 1  rows 5 to 9:  7 9  --+---> worker 1  [row 2, row 9]

    With `k` bytes of numbers and `b` bytes of rows on each worker, spread evenly over the table, a rank sends
    `(P - 1) / P (k + 2 b)` bytes in a step, in `3 (P - 1)` messages, and to each other the count of numbers for each
    owner. A worker's rows that are owned by itself are not sent.
    """

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = False) -> float:
        return (ranks - 1) / ranks * (into + 2 * out)

    def width_at_owner(self, width: int) -> int:
        return width

    def width_at_worker(self, width: int) -> int:
        return width

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        owners = np.searchsorted(self._bounds, rows, side="right") - 1
        if rows.size and not 0 <= owners.min() <= owners.max() < self._communicator.size:
            raise ValueError(
                f"the numbers that an embedding is given must be from 0 to {self._bounds[-1] - 1}. Received: numbers "
                f"from {rows.min()} to {rows.max()}. Give the layer a larger `input_dim`"
            )
        self._order = np.argsort(owners, kind="stable")
        own = np.bincount(owners, minlength=self._communicator.size)
        self._wanted = self._communicator.all_gather_rows(own)  # by worker, then by owner
        first = self._bounds[self._communicator.rank]
        return self._move(rows[self._order], self._wanted) - rows.dtype.type(first)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        arrived = self._move(rows, self._wanted.T)
        result = np.empty_like(arrived)
        result[self._order] = arrived
        return result

    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        return self._move(rows[self._order], self._wanted)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        raise AssertionError("numbers have no gradient")

    def _move(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Send rows to each rank in turn, as many as `counts` has, by sender and receiver; return those that come."""
        rank = self._communicator.rank
        starts, ends = _ranges(counts[rank].tolist()), _ranges(counts[:, rank].tolist())
        result = np.empty((ends[-1].stop, *rows.shape[1:]), rows.dtype)
        sent = np.ascontiguousarray(rows)
        result[ends[rank]] = sent[starts[rank]]
        others = _others(self._communicator)
        _transfer(self._communicator, {r: sent[starts[r]] for r in others}, {r: result[ends[r]] for r in others})
        return result


def _ranges(counts: Sequence[int]) -> list[slice]:
    ends = np.cumsum(counts).tolist()
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _columns(bounds: Bounds) -> list[slice]:
    return [slice(start, stop) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]


def _transfer(communicator: Communicator, sent: dict[int, np.ndarray], received: dict[int, np.ndarray]) -> None:
    """Send each other rank an array, and receive one from each; empty ones do not travel."""
    requests: list[Request] = [communicator.ireceive(array, rank) for rank, array in received.items() if array.size]
    requests += [communicator.isend(np.ascontiguousarray(array), rank) for rank, array in sent.items() if array.size]
    for request in requests:
        request.wait()


def _others(communicator: Communicator) -> list[int]:
    return [rank for rank in range(communicator.size) if rank != communicator.rank]


def _gather(communicator: Communicator, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the rows of all ranks, one below the other."""
    own, ranges = communicator.rank, _ranges(counts)
    whole = np.empty((sum(counts), *rows.shape[1:]), rows.dtype)
    whole[ranges[own]] = rows
    others = _others(communicator)
    _transfer(communicator, dict.fromkeys(others, rows), {rank: whole[ranges[rank]] for rank in others})
    return whole


def _sum_rows(communicator: Communicator, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the sum of what all ranks have of this rank's rows, added in the order of ranks."""
    own, ranges, others = communicator.rank, _ranges(counts), _others(communicator)
    arrived = {rank: np.empty((counts[own], *rows.shape[1:]), rows.dtype) for rank in others}
    _transfer(communicator, {rank: rows[ranges[rank]] for rank in others}, arrived)
    arrived[own] = rows[ranges[own]]
    total = arrived[0].copy()
    for rank in range(1, communicator.size):
        total += arrived[rank]
    return total


def _part_columns(communicator: Communicator, rows: np.ndarray, counts: Sequence[int], bounds: Bounds) -> np.ndarray:
    """Give each rank its columns of this rank's rows; return this rank's columns of the rows of all."""
    own, ranges, columns = communicator.rank, _ranges(counts), _columns(bounds)
    others = _others(communicator)
    result = np.empty((sum(counts), bounds[own + 1] - bounds[own]), rows.dtype)
    result[ranges[own]] = rows[:, columns[own]]
    sent = {rank: rows[:, columns[rank]] for rank in others}
    _transfer(communicator, sent, {rank: result[ranges[rank]] for rank in others})
    return result


def _join_columns(communicator: Communicator, rows: np.ndarray, counts: Sequence[int], bounds: Bounds) -> np.ndarray:
    """Give each rank its rows of this rank's columns; return all columns of this rank's rows."""
    own, ranges, others = communicator.rank, _ranges(counts), _others(communicator)
    arrived = {rank: np.empty((counts[own], bounds[rank + 1] - bounds[rank]), rows.dtype) for rank in others}
    _transfer(communicator, {rank: rows[ranges[rank]] for rank in others}, arrived)
    arrived[own] = rows[ranges[own]]
    return np.concatenate([arrived[rank] for rank in range(communicator.size)], axis=1)
