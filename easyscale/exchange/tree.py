"""The tree exchange: few steps, so it is fastest for short messages or many ranks."""

import numpy as np

from easyscale.exchange.exchange import Cost, Exchange, Path
from easyscale.exchange.registry import register
from easyscale.exchange.vectors import segments

SEGMENT_BYTES = 1 << 20


@register("tree")
class Tree(Exchange):
    """Sum along a binomial tree up to rank 0, then copy down the same tree.

                   0
               /   |  \\
              4    2    1      each edge carries the whole buffer of S bytes,
             / \\   |           once up and once down
            6   5  3
            |
            7

    With `P` ranks it takes `2 * ceil(log2 P)` steps. Every rank but the root sends its buffer up once; rank 0 sends
    it down `ceil(log2 P)` times and is the busiest. Rank 0 owns everything. Buffers longer than 1 MiB travel as
    several messages, so that all levels of the tree work at the same time.

    1. The children of rank `r` are `r + 1`, `r + 2`, `r + 4`, ... as long as the power of two is smaller than the
       lowest bit set in `r` and the rank exists. A rank receives from its children in this order and adds.
    2. It sends the sum to its parent: `r` without its lowest bit.
    3. The sum comes down from the parent and goes on to the children, the largest subtree first.

    Reference: MPI folklore; Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005.
    """

    is_elastic = True
    passes_sums_on = True

    @staticmethod
    def cost(size: int, nbytes: int) -> Cost:
        levels = (size - 1).bit_length()
        return Cost(steps=2 * levels, messages=levels, bytes=levels * nbytes)

    def critical_path(self, size: int, nbytes: int, local_size: int = 1, servers: int = 0) -> Path:
        levels, depth = (size - 1).bit_length(), size.bit_length() - 1
        # The root receives from one child per level, then sends; their messages are in transit at the same time.
        return Path(2 * depth, 2 * levels * nbytes, 3 * levels * nbytes)

    def owned(self, length: int) -> slice:
        return slice(0, length if self.communicator.rank == 0 else 0)

    def _reduce(self, buffer: np.ndarray) -> None:
        comm = self.communicator
        parent, children = self._relatives()
        parts = segments(buffer, SEGMENT_BYTES)
        pairs = [(child, np.empty(parts[0].size if parts else 0, buffer.dtype)) for child in children]
        arriving = []
        sends = []
        for index, part in enumerate(parts):
            if index == 0:
                arriving = [comm.ireceive(into[: part.size], child) for child, into in pairs]
            for number, (child, into) in enumerate(pairs):
                arriving[number].wait()
                np.add(part, into[: part.size], out=part)
                if index + 1 < len(parts):
                    arriving[number] = comm.ireceive(into[: parts[index + 1].size], child)
            if parent is not None:
                sends.append(comm.isend(part, parent))
        for send in sends:
            send.wait()

    def _gather(self, buffer: np.ndarray) -> None:
        comm = self.communicator
        parent, children = self._relatives()
        parts = segments(buffer, SEGMENT_BYTES)
        arriving = [comm.ireceive(part, parent) for part in parts] if parent is not None else []
        sends = []
        for index, part in enumerate(parts):
            if parent is not None:
                arriving[index].wait()
            sends += [comm.isend(part, child) for child in reversed(children)]
        for send in sends:
            send.wait()

    def _relatives(self) -> tuple[int | None, list[int]]:
        """Return the parent of this rank, `None` at the root, and its children, the smallest subtree first."""
        rank, size = self.communicator.rank, self.communicator.size
        lowest = rank & -rank or 1 << size.bit_length()
        children = [rank + (1 << bit) for bit in range(size.bit_length()) if 1 << bit < lowest]
        return (rank - lowest if rank else None), [child for child in children if child < size]
