"""What all ranks of all pipelines tell each other before they do something together."""

import enum
from typing import NamedTuple

import numpy as np

from easyscale.communicator import Communicator
from easyscale.errors import DesyncError

__all__ = ["Kind", "Met", "meet"]


class Kind(enum.IntEnum):
    """What a rank comes for. One that comes for `END` takes part in what the others do, and comes again."""

    END = 0  # of an epoch's data
    DECISION = 1
    STEP = 2


class Met(NamedTuple):
    """What ranks have told each other.

    Attributes:
        kind: `Kind`. What those do that have not come to the end of their data.
        samples: List. For each rank the samples of its batch.
        stops: Bool. Whether some rank's callbacks want to stop.
        learning_rate: Float. The chief's; NaN if it follows a schedule.
    """

    kind: Kind
    samples: list[int]
    stops: bool
    learning_rate: float


def meet(communicator: Communicator, kind: Kind, samples: int, stops: bool, learning_rate: float) -> Met:
    """Tell all ranks what this one does next; return what they do. It sends one row of 32 bytes.

    Raises:
        DesyncError: If some come for a step and others for a decision, or stages of one pipeline have different data.
    """
    rows = communicator.all_gather_rows(np.array([kind, samples, stops, learning_rate]))
    kinds = rows[:, 0].astype(int)
    first = Kind(kinds.max())
    different = np.flatnonzero((kinds != first) & (kinds != Kind.END))
    if different.size:
        raise DesyncError(
            f"all ranks must do the same in a `fit()`. Received: {first.name.lower()} on rank {kinds.argmax()}, "
            f"{Kind(kinds[different[0]]).name.lower()} on rank {different[0]}. Give all of them the same callbacks"
        )
    return Met(first, rows[:, 1].astype(int).tolist(), bool(rows[:, 2].any()), float(rows[0, 3]))
