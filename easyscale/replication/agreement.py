"""What ranks tell each other before every exchange, so that none enters an exchange in which the others are not.

An exchange of gradients of different lengths would hang, or add what does not belong together. So each rank first says,
in one row of 32 bytes, what it is about to exchange, and all see all rows.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from easyscale.communicator import Communicator
from easyscale.errors import DesyncError

__all__ = ["Agreed", "Agreement", "first_difference", "signature"]

_ROW = np.dtype([("signature", "i8"), ("exchange", "i8"), ("weight", "f8"), ("purpose", "i8")])

_PURPOSES = (
    "has no more data in this epoch",
    "exchanges gradients",
    "sums metrics at the end of an epoch or validation",
)
_IDLE, _GRADIENTS, _METRICS = range(3)


class Agreed(NamedTuple):
    """What the ranks are about to exchange.

    Attributes:
        signature: Int. That of the gradients.
        share: Float. By which this rank's gradients are multiplied before they are summed. The ranks' shares make 1.
    """

    signature: int
    share: float


class Agreement:
    """Counts the exchanges of one communicator and has its ranks agree before each.

    Args:
        communicator: The `Communicator`.

    Attributes:
        count: Int. The number of exchanges so far, the same on all ranks.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self.count = 0

    def reach(self, kinds: Sequence[str], weight: float) -> Agreed | None:
        """Tell the others what this rank is about to exchange; return what they are, `None` if nobody is.

        Args:
            kinds: One description for each gradient; none on a rank that has no more data in this epoch.
            weight: Float. The number of samples in this rank's gradients.

        Raises:
            DesyncError: If ranks exchange different gradients. It names the first that differs.
        """
        rows = self._say(_GRADIENTS if kinds else _IDLE, (_IDLE, _GRADIENTS), signature(kinds), weight)
        acting = rows[rows["purpose"] == _GRADIENTS]
        if not acting.size:
            return None
        if (acting["signature"] != acting["signature"][0]).any() or (rows["exchange"] != self.count).any():
            self._explain(kinds, rows)
        self.count += 1
        total = rows["weight"].sum()
        return Agreed(int(acting["signature"][0]), float(weight / total) if total > 0 else 0.0)

    def meet_for_metrics(self) -> None:
        """Return when all ranks are about to sum their metrics.

        Raises:
            DesyncError: If some do something else.
        """
        self._say(_METRICS, (_METRICS,))

    def _say(self, purpose: int, expected: tuple[int, ...], signature: int = 0, weight: float = 0.0) -> np.ndarray:
        """Tell the others what this rank does next; return the rows of all, which must be among the expected."""
        row = np.zeros(1, _ROW)
        row["signature"], row["exchange"], row["weight"], row["purpose"] = signature, self.count, weight, purpose
        rows = self._communicator.all_gather_rows(row)[:, 0]
        if (other := np.flatnonzero(~np.isin(rows["purpose"], expected))).size:
            rank, theirs = other[0], rows["purpose"][other[0]]
            raise DesyncError(
                f"all ranks must take part in the same epochs and validations. Received: rank {rank} "
                f"{_PURPOSES[theirs]}, rank {self._communicator.rank} {_PURPOSES[purpose]}. Call `fit()` with the same "
                "`epochs` and `validation_data` on all ranks"
            )
        return rows

    def _explain(self, kinds: Sequence[str], rows: np.ndarray) -> None:
        if (rows["exchange"] != self.count).any():
            detail = f"exchanges so far on ranks 0 to {len(rows) - 1}: {rows['exchange'].tolist()}"
        else:
            everyones = self._communicator.share(list(kinds))
            acting = {rank: kinds for rank, kinds in enumerate(everyones) if kinds}
            detail = "gradients " + first_difference(acting)
        raise DesyncError(
            f"all ranks must exchange the same gradients. Received: {detail}. Run one script on all ranks"
        )


def signature(kinds: Sequence[str]) -> int:
    """Return a number of 64 bits that stands for `kinds`."""
    digest = hashlib.blake2b(json.dumps(list(kinds)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def first_difference(lists: dict[int, Sequence[str]]) -> str:
    """Describe the first place in which the lists of two ranks differ.

    Example:

    >>> first_difference({0: ["a", "b"], 1: ["a", "c"]})
    'number 1: b on rank 0, c on rank 1'
    """
    first = min(lists)
    for rank, theirs in lists.items():
        if len(theirs) != len(lists[first]):
            return f"{len(lists[first])} on rank {first}, {len(theirs)} on rank {rank}"
        for index, (a, b) in enumerate(zip(lists[first], theirs, strict=True)):
            if a != b:
                return f"number {index}: {a} on rank {first}, {b} on rank {rank}"
    return "that do not differ"
