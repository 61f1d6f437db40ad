"""Agreement of ranks on their next collective call, so that none waits for a call that others do not make.

An exchange of gradients of different lengths would hang, or add unrelated values; a rank that has run out of data would
leave the others waiting. So each rank first announces its next call, in one row of 48 bytes, and all ranks receive all
rows.
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
    """The kinds of collective calls. A rank that announces a lower one first takes part in the highest announced."""

    END = 0  # the end of an epoch's or a validation's data
    DECISION = 1  # whether to stop, and the learning rate
    CHECK = 2  # whether the weights are equal
    BACKUP = 3  # a copy of each rank's part of an optimizer's state, to the next rank
    BUILD = 4  # the variables of a model or an optimizer, before the first step would create them
    CHECKPOINT = 5  # the state of all ranks, which the chief writes
    ROWS = 6  # one row of numbers from each rank, inside a step
    ACTIVATIONS = 7  # sent to the owners of a layer's slices, or their gradients, inside a step
    GRADIENTS = 8  # inside a step, or a round
    ROUND = 9  # averages weights that each rank has changed alone
    STATE = 10  # collects a divided state, which one rank is about to save or read
    BEGIN = 11  # the start of a fit(), or of an optimizer's exchanges: announced by all ranks, or none


_ASKED = 64  # added to the purpose by a rank that was asked to end

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
_WORDS = 4  # the first words of a row: equal on all ranks as long as they make the same call


class Agreed(NamedTuple):
    """The collective call that ranks are about to make.

    Attributes:
        purpose: `Purpose`. The highest of all ranks.
        detail: Int. Of gradients the signature, of rows the length, of activations the number of the `CallPart`, of a
            check, checkpoint or round the step, of a state its number.
        share: Float. The factor by which this rank's gradients are multiplied before they are summed. The shares of all
            ranks add up to 1.
        same_batch: Bool. Whether several ranks take part, all with the same data.
    """

    purpose: Purpose
    detail: int
    share: float
    same_batch: bool


class Agreement:
    """Has the ranks of one communicator agree on their next call, and counts their exchanges of gradients.

    Args:
        communicator: The `Communicator`.

    Attributes:
        count: Int. The number of exchanges so far, the same on all ranks.
        phase: Int. Twice the number of the epoch, from 1, or 0 outside of `fit()`; plus 1 in an evaluation.
        asked_to_end: Bool. Whether some rank was asked to end, as of the last agreement.
        not_finite: List. The ranks whose `batch` was NaN in the first exchange that had any.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self.count = 0
        self.phase = 0
        self.asked_to_end = False
        self.not_finite: list[int] = []
        self._was_asked = False
        everyone = everyone_of(communicator)
        self._columns_count = everyone.size // communicator.size  # the number of ranks in a worker
        self._column = everyone.rank % self._columns_count

    def ask_to_end(self) -> None:
        """Notify all ranks, in the next agreement, that this one was asked to end."""
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
        """Announce this rank's next call; return the agreed one.

        That has a higher purpose than this rank's if this rank has fewer steps than others. This rank then takes part
        in it, with weight zero, and calls this again.

        Args:
            purpose: `Purpose`.
            detail: Int. See `Agreed`.
            weight: Float. The number of samples in this rank's gradients. NaN if they are not finite.
            batch: Float. A fingerprint of this rank's data; 0 if there is none. NaN if its loss is not finite.
            descriptions: A text for each gradient, for the error if gradients differ between ranks.

        Raises:
            DesyncError: If ranks are in different epochs, or make different calls in one step. It names the first
                difference.
        """
        progress = self._communicator.progress
        progress.purpose, progress.exchanges = _PURPOSES[purpose], self.count
        row = np.zeros(1, _ROW)
        row[0] = self.phase, purpose + _ASKED * self._was_asked, detail, self.count, weight, batch
        all_rows = everyone_of(self._communicator).all_gather_rows(row)[:, 0]
        acting = rows = self._columns(all_rows)[self._column]
        agreed, words = purpose, all_rows.view("i8").reshape(len(all_rows), -1)[:, :_WORDS]
        if self._was_asked or (words != words[0]).any():  # else all ranks make the same call, as in nearly every step
            agreed, acting = self._compare(all_rows, descriptions)
        if agreed == Purpose.GRADIENTS:
            self.count += 1
            self.not_finite = self.not_finite or np.flatnonzero(np.isnan(rows["batch"])).tolist()
        total = rows["weight"].sum()
        share = np.nan if np.isnan(total) else weight / total if total > 0 else 0.0
        same = acting.size > 1 and acting["batch"][0] != 0 and not _differ(acting["batch"])
        return Agreed(agreed, int(acting["detail"][0]), float(share), bool(same))

    def _columns(self, rows: Any) -> list[Any]:
        """Group the rows of ranks with the same weights, one of each worker: all rows, if a worker is one rank."""
        return [rows[first :: self._columns_count] for first in range(self._columns_count)]

    def _compare(self, rows: np.ndarray, descriptions: Sequence[str]) -> tuple[Purpose, np.ndarray]:
        """Return the purpose of ranks whose rows differ, and the rows of those that have announced it."""
        if (rows["purpose"] >= _ASKED).any():
            self.asked_to_end = True
            rows["purpose"] %= _ASKED
        agreed = Purpose(rows["purpose"].max())
        # If a worker is several ranks, gradients match along a column: one rank of each worker.
        columns = self._columns(rows) if agreed in _IN_STEP else [rows]
        all_acting = [column[column["purpose"] == agreed] for column in columns]
        # A rank that begins may still have the phase of a fit() that all ranks have left by an exception.
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
    """Return a 64-bit hash of `descriptions`."""
    digest = hashlib.blake2b(json.dumps(list(descriptions)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def first_difference(lists: dict[int, Sequence[str]]) -> str:
    """Describe the first difference between the lists of two ranks.

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
