"""What ranks tell each other before they meet, so that none waits for something that the others do not do.

An exchange of gradients of different lengths would hang, or add what does not belong together; a rank that has run out
of data would leave the others waiting. So each rank first says, in one row of 48 bytes, what it is about to do, and all
see all rows.
"""

import enum
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from easyscale.communicator import Communicator
from easyscale.communicator.data_axis import everyone_of
from easyscale.errors import DesyncError

__all__ = ["Agreed", "Agreement", "Purpose", "first_difference", "signature"]


class Purpose(enum.IntEnum):
    """What ranks meet for. One that comes for less takes part in what the others do, and comes again."""

    END = 0  # of an epoch's or a validation's data
    DECISION = 1  # whether to stop, and the learning rate
    CHECK = 2  # whether the weights are equal
    BACKUP = 3  # of each rank's part of an optimizer's state, at the next rank
    BUILD = 4  # a model, or an optimizer, that its first step makes
    CHECKPOINT = 5  # the state of all ranks, which the chief writes
    ROWS = 6  # one row of numbers from each rank, inside a step
    ACTIVATIONS = 7  # which come to the owners of a layer's slices, or their gradients, inside a step
    GRADIENTS = 8  # inside a step, or a round
    ROUND = 9  # in which weights meet that each rank has changed alone
    STATE = 10  # what is divided over ranks, which one of them is about to save, or look at
    BEGIN = 11  # of a fit(), or of an optimizer's exchanges: all ranks come for it, or none


_ASKED = 64  # is added to the purpose by a rank that was asked to end

_IN_STEP = {Purpose.ROWS, Purpose.ACTIVATIONS, Purpose.GRADIENTS}

_PURPOSES = {purpose: purpose.name.lower() for purpose in Purpose}

_ROW = np.dtype(
    [
        ("phase", "i8"),
        ("purpose", "i8"),
        ("detail", "i8"),
        ("exchange", "i8"),
        ("weight", "f8"),
        ("batch", "f8"),
    ]
)
_WORDS = 4  # of a row, by which it is the same on all ranks as long as they do the same


class Agreed(NamedTuple):
    """What the ranks are about to do.

    Attributes:
        purpose: `Purpose`. The highest of all ranks.
        detail: Int. Of gradients their signature, of rows their length, of activations the number of their way, of a
            check, checkpoint or round the step, of a state its number.
        share: Float. By which this rank's gradients are multiplied before they are summed. The ranks' shares make 1.
        same_batch: Bool. Whether several ranks act, and all on the same data.
    """

    purpose: Purpose
    detail: int
    share: float
    same_batch: bool


class Agreement:
    """Has the ranks of one communicator agree on what they do next, and counts their exchanges of gradients.

    Args:
        communicator: The `Communicator`.

    Attributes:
        count: Int. The number of exchanges so far, the same on all ranks.
        phase: Int. Twice the number of the epoch, from 1; one more in its validation. 0 outside of `fit()`.
        asked_to_end: Bool. Whether some rank was asked to end, as far as all know since they met the last time.
        not_finite: List. The ranks whose `batch` was NaN in the first exchange in which one was.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self.count = 0
        self.phase = 0
        self.asked_to_end = False
        self.not_finite: list[int] = []
        self._was_asked = False
        everyone = everyone_of(communicator)
        self._columns_count = everyone.size // communicator.size  # the ranks of a worker
        self._column = everyone.rank % self._columns_count

    def ask_to_end(self) -> None:
        """Let all ranks know, when they meet the next time, that this one was asked to end."""
        self._was_asked = True
        self.asked_to_end = self.asked_to_end or everyone_of(self._communicator).size == 1

    def meet(
        self,
        purpose: Purpose,
        detail: int = 0,
        weight: float = 0.0,
        batch: float = 0.0,
        descriptions: Sequence[str] = (),
    ) -> Agreed:
        """Tell the others what this rank is about to do; return what the ranks do.

        That has a higher purpose than this rank's if this rank has fewer steps than others. It then takes part in what
        they do, with weight zero, and calls this again.

        Args:
            purpose: `Purpose`.
            detail: Int. See `Agreed`.
            weight: Float. The number of samples in this rank's gradients. NaN if they are not finite.
            batch: Float. A number that stands for this rank's data; 0 if there is none. NaN if its loss is not finite.
            descriptions: Of the gradients, one text for each, for the error if they are not those of other ranks.

        Raises:
            DesyncError: If ranks are in different epochs, or do different things in one step. It names the first
                difference.
        """
        progress = self._communicator.progress
        progress.purpose, progress.exchanges = _PURPOSES[purpose], self.count
        row = np.zeros(1, _ROW)
        row[0] = self.phase, purpose + _ASKED * self._was_asked, detail, self.count, weight, batch
        all_rows = everyone_of(self._communicator).all_gather_rows(row)[:, 0]
        acting = rows = self._columns(all_rows)[self._column]
        agreed, words = purpose, all_rows.view("i8").reshape(len(all_rows), -1)[:, :_WORDS]
        if self._was_asked or (words != words[0]).any():  # else all ranks do the same, as in nearly every step
            agreed, acting = self._compare(all_rows, descriptions)
        if agreed == Purpose.GRADIENTS:
            self.count += 1
            self.not_finite = self.not_finite or np.flatnonzero(np.isnan(rows["batch"])).tolist()
        total = rows["weight"].sum()
        share = np.nan if np.isnan(total) else weight / total if total > 0 else 0.0
        same = acting.size > 1 and acting["batch"][0] != 0 and not _differ(acting["batch"])
        return Agreed(agreed, int(acting["detail"][0]), float(share), bool(same))

    def _columns(self, rows: Any) -> list[Any]:
        """Return the rows of ranks of different workers that have the same weights: all, if a worker is one rank."""
        return [rows[first :: self._columns_count] for first in range(self._columns_count)]

    def _compare(self, rows: np.ndarray, descriptions: Sequence[str]) -> tuple[Purpose, np.ndarray]:
        """Return what ranks that do not all do the same are about to do, and the rows of those that act."""
        if (rows["purpose"] >= _ASKED).any():
            self.asked_to_end = True
            rows["purpose"] %= _ASKED
        agreed = Purpose(rows["purpose"].max())
        # Where a worker is several ranks, gradients match along a column of ranks, one of each worker.
        columns = self._columns(rows) if agreed in _IN_STEP else [rows]
        all_acting = [column[column["purpose"] == agreed] for column in columns]
        # Who begins may still have the phase of a fit() that all have left by an exception.
        in_one_phase = agreed in (Purpose.STATE, Purpose.BEGIN) or not _differ(rows["phase"])
        purposes = set(rows["purpose"])
        begins_alone = Purpose.BEGIN in purposes and len(purposes) > 1
        if not in_one_phase or begins_alone or len(_IN_STEP & purposes) > 1:
            self._explain_phases(rows)
        if _differ(rows["exchange"]) or any(_differ(acting["detail"]) for acting in all_acting):
            self._explain_details(agreed, descriptions, rows)
        return agreed, all_acting[self._column if len(columns) > 1 else 0]

    def _explain_phases(self, rows: np.ndarray) -> None:
        other = next(rank for rank, row in enumerate(rows) if tuple(row)[:2] != tuple(rows[0])[:2])
        numbers = everyone_of(self._communicator).membership.initial_ranks
        raise DesyncError(
            "all ranks must take part in the same epochs, validations and steps. Received: "
            f"rank {numbers[0]} {_describe(rows[0])}, rank {numbers[other]} {_describe(rows[other])}. "
            "Call `fit()` with the same `epochs` and `validation_data` on all ranks, and run one script on all"
        )

    def _explain_details(self, agreed: Purpose, descriptions: Sequence[str], rows: np.ndarray) -> None:
        everyone = everyone_of(self._communicator)
        numbers = everyone.membership.initial_ranks
        if _differ(rows["exchange"]):
            counts = dict(zip(numbers, rows["exchange"].tolist(), strict=True))
            detail = "exchanges so far: " + ", ".join(f"{count} on rank {rank}" for rank, count in counts.items())
        elif agreed == Purpose.GRADIENTS:
            told = list(zip(numbers, everyone.all_gather_object(list(descriptions)), strict=True))
            columns = [{rank: texts for rank, texts in column if texts} for column in self._columns(told)]
            differs = (column for column in columns if len(set(map(tuple, column.values()))) > 1)
            detail = "gradients " + first_difference(next(differs, columns[0]))
        else:
            detail = f"details {rows['detail'].tolist()} of a {agreed.name.lower()}"
        raise DesyncError(
            f"all ranks must exchange the same gradients. Received: {detail}. Run one script on all ranks"
        )


def _differ(values: np.ndarray) -> bool:
    return bool((values != values[0]).any())


def _describe(row: np.void) -> str:
    epoch, validates = divmod(int(row["phase"]), 2)
    where = f"in epoch {epoch}" if epoch else "outside of fit()"
    doing = {
        Purpose.END: "has come to the end of the data",
        Purpose.DECISION: "is between steps",
        Purpose.CHECK: "compares weights",
        Purpose.BACKUP: "copies its part of the optimizer's state",
        Purpose.BUILD: "builds the model",
        Purpose.CHECKPOINT: "writes a checkpoint",
        Purpose.ROWS: "is inside a step",
        Purpose.ACTIVATIONS: "sends activations",
        Purpose.GRADIENTS: "exchanges gradients",
        Purpose.ROUND: "makes a round",
        Purpose.STATE: "saves",
        Purpose.BEGIN: "begins to train",
    }[row["purpose"]]
    return f"{doing} {f'of the validation {where}' if validates else where}"


def signature(descriptions: Sequence[str]) -> int:
    """Return a number of 64 bits that stands for `descriptions`."""
    digest = hashlib.blake2b(json.dumps(list(descriptions)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def first_difference(lists: dict[int, Sequence[str]]) -> str:
    """Describe where first the lists of two ranks differ.

    Example:

    >>> first_difference({0: ["a", "b"], 1: ["a", "c"]})
    'number 1: b on rank 0, c on rank 1'
    """
    first = min(lists)
    for rank, descriptions in lists.items():
        if len(descriptions) != len(lists[first]):
            return f"{len(lists[first])} on rank {first}, {len(descriptions)} on rank {rank}"
        for index, (a, b) in enumerate(zip(lists[first], descriptions, strict=True)):
            if a != b:
                return f"number {index}: {a} on rank {first}, {b} on rank {rank}"
    return "that do not differ"
