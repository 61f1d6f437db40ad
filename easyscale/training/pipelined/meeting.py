"""Agreement between all ranks of all pipelines before they do something together."""

import enum
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from easyscale.communicator import Communicator
from easyscale.errors import DesyncError
from easyscale.keras_internals import learning_rate_of
from easyscale.step.agreement import Purpose
from easyscale.update.accumulated import unscaled

__all__ = ["Kind", "Meetings", "Met", "meet"]


class Kind(enum.IntEnum):
    """The purpose of a rank. One that comes for `END` takes part in the others' operations, and comes again."""

    END = 0  # of an epoch's data
    DECISION = 1
    CHECKPOINT = 2
    STEP = 3


class Met(NamedTuple):
    """The result of a meeting.

    Attributes:
        kind: `Kind`. The purpose of the ranks whose data has not ended.
        samples: List. For each rank, the samples of its batch.
        stops: Bool. Whether some rank's callbacks want to stop.
        learning_rate: Float. The chief's; NaN if it follows a schedule.
        asked: Bool. Whether some rank was asked to end.
    """

    kind: Kind
    samples: list[int]
    stops: bool
    learning_rate: float
    asked: bool


def meet(
    communicator: Communicator, kind: Kind, samples: int, stops: bool, learning_rate: float, asked: bool = False
) -> Met:
    """Tell all ranks the purpose of this one; return that of all. It sends one row of 40 bytes.

    Raises:
        DesyncError: If some come for a step and others for a decision.
    """
    rows = communicator.all_gather_rows(np.array([kind, samples, stops, learning_rate, asked]))
    kinds = rows[:, 0].astype(int)
    first = Kind(kinds.max())
    different = np.flatnonzero((kinds != first) & (kinds != Kind.END))
    if different.size:
        raise DesyncError(
            f"all ranks must do the same in a `fit()`. Received: {first.name.lower()} on rank {kinds.argmax()}, "
            f"{Kind(kinds[different[0]]).name.lower()} on rank {different[0]}. Give all of them the same callbacks"
        )
    samples_of_all, rate = rows[:, 1].astype(int).tolist(), float(rows[0, 3])
    return Met(first, samples_of_all, bool(rows[:, 2].any()), rate, bool(rows[:, 4].any()))


class Meetings:
    """The synchronization points of ranks in a `fit()`, including those without data. Implements `Steps`.

    Args:
        model: The model.
        communicator: The `Communicator` of all ranks.

    Attributes:
        asked_to_end: Bool. Whether some rank was asked to end, as of the last meeting of all ranks.
    """

    def __init__(self, model: keras.Model, communicator: Communicator):
        self._model, self._communicator = model, communicator
        self._asked = self.asked_to_end = False
        self._acts: dict[Purpose, Callable[[int], None]] = {}

    def ask_to_end(self) -> None:
        """Make all ranks end together."""
        self._asked = True

    def register(self, purpose: Purpose, act: Callable[[int], None]) -> None:
        """Register `act(steps)`, called on ranks without data when others come for `purpose`."""
        self._acts[purpose] = act

    def reach(self, purpose: Purpose, detail: int = 0) -> None:
        """Wait until all ranks that have data have come to a checkpoint."""
        self.meet(Kind.CHECKPOINT)

    def join_checkpoint(self, steps: int) -> None:
        """Take part, without data, in the checkpoint of the others."""
        self._acts[Purpose.CHECKPOINT](steps)

    def meet(self, kind: Kind, samples: int = 0) -> Met:
        """Tell all ranks the purpose of this one; apply the callbacks' decisions if the purpose is to decide."""
        optimizer = self._model.optimizer
        rate = learning_rate_of(unscaled(optimizer))
        number = float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else float("nan")
        met = meet(self._communicator, kind, samples, bool(self._model.stop_training), number, self._asked)
        self.asked_to_end = self.asked_to_end or met.asked
        if met.kind is Kind.DECISION:
            self._model.stop_training = met.stops
            if met.learning_rate != number and isinstance(rate, keras.Variable):
                optimizer.learning_rate = met.learning_rate
        return met
