"""The ring exchange: every link is busy all the time, and none carries more than any other."""

import collections

import numpy as np

from easyscale.communicator import Request
from easyscale.exchange.exchange import Cost, Exchange
from easyscale.exchange.registry import register
from easyscale.exchange.vectors import segments

SEGMENT_BYTES = 1 << 18  # fits the second-level cache together with what it is added to


@register("ring")
class Ring(Exchange):
    """Pass chunks around a ring of ranks: reduce-scatter, then all-gather.

            0 --> 1
            ^     |        each arrow carries one chunk of S / P bytes
            3 <-- 2

    With `P` ranks and a buffer of `S` bytes each rank sends `2 * (P - 1)` messages and `2 * S * (P - 1) / P` bytes,
    and no algorithm can send fewer bytes. Chunks longer than 256 KiB travel as several messages.

    1. Rank `r` owns chunk `r`. It starts by sending chunk `r - 1` to rank `r + 1`.
    2. It receives chunk `r - 2` from rank `r - 1`, adds its own values and passes the sum on; then `r - 3`, and so
       on. The `P - 1`th chunk that arrives is its own and is now complete.
    3. In the same way the complete chunks go around once more, and each rank keeps a copy of them.

    A chunk is cut into segments. A segment is passed on as soon as it is summed, while the next one arrives, so
    transfer and summing overlap.

    Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """

    is_elastic = True
    passes_sums_on = True

    @staticmethod
    def cost(size: int, nbytes: int) -> Cost:
        steps = 2 * (size - 1)
        return Cost(steps=steps, messages=steps, bytes=2 * nbytes * (size - 1) // size)

    def _reduce(self, buffer: np.ndarray) -> None:
        comm = self.communicator
        left, right = self._neighbours()
        sends = [comm.isend(part, right) for part in self._chunk(buffer, comm.rank - 1)]
        passing = [part for step in range(2, comm.size) for part in self._chunk(buffer, comm.rank - step)]
        own = self._chunk(buffer, comm.rank)
        parts = passing + own

        longest = max((part.size for part in parts), default=0)
        free = collections.deque(np.empty(longest, buffer.dtype) for _ in range(2))
        arriving: collections.deque[tuple[np.ndarray, Request]] = collections.deque()
        ahead = iter(parts)

        def receive_next() -> None:
            if (part := next(ahead, None)) is not None:
                incoming = free.popleft()
                arriving.append((incoming, comm.ireceive(incoming[: part.size], left)))

        receive_next()
        for index, part in enumerate(parts):
            receive_next()
            incoming, request = arriving.popleft()
            request.wait()
            np.add(part, incoming[: part.size], out=part)
            free.append(incoming)
            if index < len(passing):
                sends.append(comm.isend(part, right))
        for send in sends:
            send.wait()

    def _gather(self, buffer: np.ndarray) -> None:
        comm = self.communicator
        left, right = self._neighbours()
        arriving = [
            (part, comm.ireceive(part, left), step < comm.size - 1)
            for step in range(1, comm.size)
            for part in self._chunk(buffer, comm.rank - step)
        ]
        sends = [comm.isend(part, right) for part in self._chunk(buffer, comm.rank)]
        for part, request, passes in arriving:
            request.wait()
            if passes:
                sends.append(comm.isend(part, right))
        for send in sends:
            send.wait()

    def _neighbours(self) -> tuple[int, int]:
        rank, size = self.communicator.rank, self.communicator.size
        return (rank - 1) % size, (rank + 1) % size

    def _chunk(self, buffer: np.ndarray, rank: int) -> list[np.ndarray]:
        """Return the segments of the chunk that rank `rank`, counted around the ring, owns."""
        return segments(buffer[self._owned_range(buffer.size, rank % self.communicator.size)], SEGMENT_BYTES)
