"""Where the ranks of one node meet: by flags in memory that they have in common, without a message."""

import numpy as np

from easyscale.communicator import Communicator, Wait
from easyscale.communicator.communicator import Window
from easyscale.errors import DesyncError
from easyscale.exchange.vectors import DTYPES

__all__ = ["FLAGS_BYTES", "Meetings", "form_of"]

FLAGS_BYTES = 128
_DTYPE_BITS = 4  # of what a rank says of its vector, for the place of its dtype in `DTYPES`
_CODES = {dtype: place for place, dtype in enumerate(DTYPES)}
_LOOKS = 200  # at the other ranks' flags, before the core is given away


class Meetings:
    """The meetings of the ranks of one node. All ranks call each method alike.

    Each rank counts up a number in its own memory and waits until the others' have come as far. Beside it stands what
    the rank is about to do, so that vectors of different lengths are an error and not a sum.

    Args:
        communicator: The `Communicator`. Its ranks on this node meet.
        window: `Window` of theirs, whose first `FLAGS_BYTES` nobody else writes to.

    Attributes:
        count: Int. How many there have been.
    """

    def __init__(self, communicator: Communicator, window: Window):
        self._communicator, self._window = communicator, window
        self._own, self._size = communicator.local_rank, communicator.local_size
        self._others = [rank for rank in range(self._size) if rank != self._own]
        # For each rank: how often it has met the others; what it does, in even meetings and in odd ones.
        self._flags = [part[:FLAGS_BYTES].data.cast("q") for part in window.parts]
        self.count = 0

    @property
    def words(self) -> list[int]:
        """What each rank said in the last meeting."""
        return [flags[2 + 2 * (self.count & 1)] for flags in self._flags]

    def meet(self, form: int = 0, word: int = 0) -> None:
        """Return when all ranks of the node have come here. Then `words` are what they have said.

        Args:
            form: Int. `form_of` the vector that it is about. Defaults to 0: none.
            word: Int. Another number for the others. Defaults to 0.

        Raises:
            DesyncError: If they come with vectors of different lengths or dtypes.
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
    """Return the bytes of a vector and its dtype in one number."""
    return nbytes << _DTYPE_BITS | _CODES[dtype]


def _described(form: int) -> str:
    return f"{form >> _DTYPE_BITS} bytes of {DTYPES[form & (1 << _DTYPE_BITS) - 1].name}"
