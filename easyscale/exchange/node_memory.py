"""Sums of vectors in memory shared by the ranks of one node, without messages."""

import functools
import operator
from collections.abc import Callable, Iterator

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange.lending import loan
from easyscale.exchange.meetings import FLAGS_BYTES, Meetings, form_of
from easyscale.exchange.vectors import capacity
from easyscale.layout.bucket import ALIGNMENT

__all__ = ["SHORT_BYTES", "NodeMemory"]

BLOCK_BYTES = 1 << 17  # of each rank's vector at a time, which stay in the second-level cache while they are summed
SHORT_BYTES = 1 << 16  # vectors up to this length are summed by every rank: that takes one barrier instead of three

Divide = Callable[[int], list[slice]]


class NodeMemory:
    """The windows of the ranks of one node, and the operations on them. Each method is collective.

    `Meetings` provides the barriers.

    Args:
        communicator: The `Communicator`. Its ranks on this node take part.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self._own, self._size = communicator.local_rank, communicator.local_size
        self._others = [rank for rank in range(self._size) if rank != self._own]
        self._control = communicator.allocate_shared(FLAGS_BYTES + 2 * SHORT_BYTES)
        self._meetings = Meetings(communicator, self._control)
        self._shorts = 0  # which of two slots the last short vector was in
        self._short_views: dict[tuple, tuple] = {}
        self._windows: list[_Pooled] = []
        self._stage: list[np.ndarray] = [np.zeros(0, np.uint8)]  # for vectors that are not in a window

    @classmethod
    def of(cls, communicator: Communicator) -> "NodeMemory":
        """Return the object of `communicator`; create it the first time."""
        known = vars(communicator)  # it lives as long as the communicator
        if "_node_memory" not in known:
            known["_node_memory"] = cls(communicator)
        return known["_node_memory"]

    @staticmethod
    def forget(communicator: Communicator) -> None:
        """Forget the object of `communicator`, so that `of` creates one for its new ranks."""
        vars(communicator).pop("_node_memory", None)

    def allocate(self, length: int, dtype: np.dtype) -> np.ndarray:
        """Return a vector of zeros in a window, lent as by `lend`."""
        vector = self.lend(length, dtype, common=False)
        vector[:] = 0
        return vector

    def lend(self, length: int, dtype: np.dtype, common: bool) -> np.ndarray:
        """Return a vector in a window: this rank's own, which is summed in place, or if `common` one that all share.

        The memory is lent again when no rank has a view of it any more.
        """
        nbytes = length * dtype.itemsize
        if nbytes == 0:
            return np.zeros(0, dtype)
        fits = [
            pooled for pooled in self._windows if pooled.common == common and nbytes <= pooled.nbytes <= 2 * nbytes
        ][:62]
        self._meetings.meet(nbytes, sum(pooled.free << bit for bit, pooled in enumerate(fits)))
        free = functools.reduce(operator.and_, self._meetings.words)
        window = fits[(free & -free).bit_length() - 1] if free else self._add_window(capacity(nbytes), common)
        window.free = False
        return loan(window.parts[window.own][:nbytes].view(dtype), functools.partial(setattr, window, "free", True))

    def _add_window(self, nbytes: int, common: bool) -> "_Pooled":
        has_part = not common or self._own == 0
        parts = self._communicator.allocate_shared(nbytes + ALIGNMENT if has_part else 0).parts
        parts = [_aligned(part, nbytes) for part in parts[: 1 if common else None]]
        self._windows.append(_Pooled(parts, 0 if common else self._own, common))
        return self._windows[-1]

    # The operations. `divide(length)` returns the part of the vector that each rank of the node sums.

    def allreduce(self, buffer: np.ndarray, divide: Divide) -> None:
        """Overwrite `buffer` with its sum over the node."""
        if buffer.nbytes <= SHORT_BYTES:
            return self._sum_short(buffer)
        spans = divide(buffer.size)
        views = self._meet_over(buffer)
        if views is None:
            self._sum_staged(buffer, spans, publish=True)
            return self._collect(buffer, spans)
        for block in self._sum_blocks(buffer, views, spans):
            for rank in self._others:
                views[rank][block] = buffer[block]
        self._meetings.meet()

    def reduce(self, buffer: np.ndarray, divide: Divide) -> None:
        """Overwrite this rank's span of `buffer` with its sum over the node."""
        spans = divide(buffer.size)
        if buffer.nbytes <= SHORT_BYTES:
            return self._sum_short(buffer, spans[self._own])
        views = self._meet_over(buffer)
        if views is None:
            return self._sum_staged(buffer, spans, publish=False)
        for _ in self._sum_blocks(buffer, views, spans):
            pass
        self._meetings.meet()

    def gather(self, buffer: np.ndarray, divide: Divide) -> None:
        """Overwrite the other ranks' spans of `buffer` with their values."""
        spans = divide(buffer.size)
        views = self._meet_over(buffer)
        if buffer.nbytes == 0:
            return
        if views is None:
            own = spans[self._own]
            self._staged(buffer)[self._own][own] = buffer[own]
            self._meetings.meet()
            return self._collect(buffer, spans)
        if len(views) == 1:  # common to all
            return
        for rank in self._others:
            buffer[spans[rank]] = views[rank][spans[rank]]
        self._meetings.meet()

    def _sum_blocks(self, buffer: np.ndarray, views: list[np.ndarray], spans: list[slice]) -> Iterator[slice]:
        """Sum this rank's span; yield each block when it is done and still in the cache."""
        step, own = BLOCK_BYTES // buffer.itemsize, spans[self._own]
        for start in range(own.start, own.stop, step):
            block = slice(start, min(start + step, own.stop))
            total = buffer[block]
            for rank in self._others:
                np.add(total, views[rank][block], out=total)
            yield block

    # Short vectors: every rank sums all of them, in the same order.

    def _sum_short(self, buffer: np.ndarray, part: slice | None = None) -> None:
        own, first, second, rest = self._views_of_short(buffer)
        np.copyto(own, buffer)
        self._meetings.meet(form_of(buffer.nbytes, buffer.dtype))
        total = buffer
        if part is not None:
            total, first, second, *rest = (view[part] for view in (buffer, first, second, *rest))
        np.add(first, second, out=total)
        for view in rest:
            np.add(total, view, out=total)

    def _views_of_short(self, buffer: np.ndarray) -> tuple:
        """Return this rank's slot for short vectors, then all ranks': the first, the second, a list of the others.

        Two slots alternate: when a rank writes to one again, all others have read it.
        """
        self._shorts = turn = 1 - self._shorts
        key = buffer.size, buffer.dtype.num, turn
        if key not in self._short_views:
            if len(self._short_views) > 100:
                self._short_views.clear()
            span = slice(start := FLAGS_BYTES + turn * SHORT_BYTES, start + buffer.nbytes)
            views = [part[span].view(buffer.dtype) for part in self._control.parts]
            self._short_views[key] = views[self._own], views[0], views[1], views[2:]
        return self._short_views[key]

    # Vectors that are not in a window go through a staging buffer.

    def _sum_staged(self, buffer: np.ndarray, spans: list[slice], publish: bool) -> None:
        views = self._staged(buffer)
        own = views[self._own]
        for rank in self._others:
            own[spans[rank]] = buffer[spans[rank]]
        self._meetings.meet()
        for block in self._sum_blocks(buffer, views, spans):
            if publish:
                own[block] = buffer[block]
        if publish:
            self._meetings.meet()

    def _collect(self, buffer: np.ndarray, spans: list[slice]) -> None:
        views = self._staged(buffer)
        for rank in self._others:
            buffer[spans[rank]] = views[rank][spans[rank]]

    def _staged(self, buffer: np.ndarray) -> list[np.ndarray]:
        if self._stage[0].size < buffer.nbytes:
            window = self._communicator.allocate_shared(buffer.nbytes + ALIGNMENT)
            self._stage = [_aligned(part, buffer.nbytes) for part in window.parts]
        return [part[: buffer.nbytes].view(buffer.dtype) for part in self._stage]

    # Barriers

    def _meet_over(self, buffer: np.ndarray) -> list[np.ndarray] | None:
        """Wait for all ranks; return their vectors if each is at the same offset of a window, else `None`."""
        offset, views = self._find(buffer)
        self._meetings.meet(form_of(buffer.nbytes, buffer.dtype), offset)
        return views if offset and all(other == offset for other in self._meetings.words) else None

    def _find(self, buffer: np.ndarray) -> tuple[int, list[np.ndarray]]:
        address = _address(buffer)
        for number, window in enumerate(self._windows):
            offset = address - window.address
            if offset >= 0 and offset + buffer.nbytes <= window.nbytes:
                views = [part[offset : offset + buffer.nbytes].view(buffer.dtype) for part in window.parts]
                return (number + 1 << 48) + offset, views
        return 0, []


class _Pooled:
    """A window whose memory is lent."""

    def __init__(self, parts: list[np.ndarray], own: int, common: bool):
        self.parts, self.own, self.common = parts, own, common
        self.nbytes, self.address = parts[own].size, _address(parts[own])
        self.free = True  # as far as this rank knows


def _aligned(part: np.ndarray, nbytes: int) -> np.ndarray:
    start = -_address(part) % ALIGNMENT if part.size else 0
    return part[start : start + nbytes]


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
