"""Barriers between the ranks of one node, by flags in shared memory, without messages."""

import numpy as np

from easyscale.communicator import Communicator, Wait
from easyscale.communicator.communicator import Window
from easyscale.errors import DesyncError
from easyscale.exchange.vectors import DTYPES

__all__ = ["FLAGS_BYTES", "Meetings", "form_of"]

FLAGS_BYTES = 128
_DTYPE_BITS = 4  # of a rank's description of its vector, for the index of the dtype in `DTYPES`
_CODES = {dtype: place for place, dtype in enumerate(DTYPES)}
_LOOKS = 200  # polls of another rank's flags before the core is given up


class Meetings:
    """Barriers between the ranks of one node. Each method is collective.

    Each rank increments a counter in its own memory and waits until the others' have reached it. Next to it is a
    description of the rank's vector, so that vectors of different lengths raise an error instead of being summed.

    Args:
        communicator: The `Communicator`. Its ranks on this node take part.
        window: `Window` of these ranks, whose first `FLAGS_BYTES` nothing else writes to.

    Attributes:
        count: Int. The number of barriers so far.
    """

    def __init__(self, communicator: Communicator, window: Window):
        self._communicator, self._window = communicator, window
        self._own, self._size = communicator.local_rank, communicator.local_size
        self._others = [rank for rank in range(self._size) if rank != self._own]
        # For each rank: its counter; then form and word of even barriers, and of odd ones.
        self._flags = [part[:FLAGS_BYTES].data.cast("q") for part in window.parts]
        self.count = 0

    @property
    def words(self) -> list[int]:
        """The `word` of each rank in the last barrier."""
        return [flags[2 + 2 * (self.count & 1)] for flags in self._flags]

    def meet(self, form: int = 0, word: int = 0) -> None:
        """Wait until all ranks of the node have called this. Then `words` has the `word` of each.

        Args:
            form: Int. `form_of` the vector that is summed. Defaults to 0: none.
            word: Int. Another number to pass to the others. Defaults to 0.

        Raises:
            DesyncError: If they pass vectors of different lengths or dtypes.
        """
        self.count = number = self.count + 1
        told = 1 + 2 * (number & 1)
        flags, sync = self._flags[self._own], self._window.sync
        flags[told] = form
        flags[told + 1] = word
        sync()
        flags[0] = number
        sync()
        for rank in self._others:
            others = self._flags[rank]
            looks = _LOOKS
            while others[0] < number:
                if looks == 0:
                    self._wait_for(rank, number)
                looks -= 1
            sync()
            if others[told] != form:
                raise DesyncError(
                    "all ranks must pass vectors of the same length and dtype. Received: "
                    f"{_described(form)} on {self._name(self._own)}, {_described(others[told])} on {self._name(rank)}. "
                    "Run one script on all ranks"
                )

    def _wait_for(self, local_rank: int, meeting: int) -> None:
        flags, rank = self._flags[local_rank], self._node[local_rank]
        self._communicator.poll(lambda: flags[0] >= meeting, Wait(f"waits for rank {rank}", lambda: [rank]))

    @property
    def _node(self) -> list[int]:
        return next(node for node in self._communicator.nodes if self._communicator.rank in node)

    def _name(self, local_rank: int) -> str:
        return f"rank {self._node[local_rank]}"


def form_of(nbytes: int, dtype: np.dtype) -> int:
    """Return the size of a vector in bytes and its dtype, encoded in one number."""
    return nbytes << _DTYPE_BITS | _CODES[dtype]


def _described(form: int) -> str:
    return f"{form >> _DTYPE_BITS} bytes of {DTYPES[form & (1 << _DTYPE_BITS) - 1].name}"
