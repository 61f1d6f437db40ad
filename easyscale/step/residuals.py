"""Compression errors of gradients on this rank, which are added to those of the next step. NumPy only."""

import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.compression import Span
from easyscale.errors import EasyScaleWarning
from easyscale.layout.specs import Spec
from easyscale.step.rows_of_ranks import collect_rows

__all__ = ["Residuals"]

_FLOAT32 = np.dtype("float32")


class Residuals:
    """This rank's residuals of the gradients of one optimizer, one for each variable, by its number.

    They are in units of weighted gradients: their sum over ranks is what compression has left out of the mean.

    Args:
        communicator: The `Communicator`.
        name: String. The name of the codec, for the warning.
    """

    def __init__(self, communicator: Communicator, name: str):
        self._communicator, self._name = communicator, name
        self._arrays: dict[int, np.ndarray] = {}
        self._left_out = np.zeros(0, _FLOAT32)
        self._has_warned = False

    def begin(self, vector: np.ndarray, spans: Iterable[Span]) -> np.ndarray:
        """Add the residuals to the gradients in a vector; return a vector of zeros for the next residuals."""
        for span in spans:
            if span.number in self._arrays and self._arrays[span.number].size == span.stop - span.start:
                vector[span.start : span.stop] += self._arrays[span.number]
        if self._left_out.size < vector.size:
            self._left_out = np.empty(vector.size, _FLOAT32)
        left_out = self._left_out[: vector.size]
        left_out[:] = 0
        return left_out

    def keep(self, left_out: np.ndarray, spans: Sequence[Span], step: int) -> None:
        """Store the residuals of a step. If they are not finite, keep the previous ones, and warn once."""
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = bool(np.isfinite(left_out.sum()))
        if not is_finite and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a residual must be finite. Received: infinity, or NaN, on rank {self._number} in step {step}, with "
                f"compression='{self._name}'. It stays as it was before this step; clip gradients, or take a smaller "
                "learning rate",
                EasyScaleWarning,
                stacklevel=2,
            )
        if is_finite:
            for span in spans:
                part = left_out[span.start : span.stop]
                if span.number in self._arrays and self._arrays[span.number].size == part.size:
                    self._arrays[span.number][:] = part
                else:
                    self._arrays[span.number] = part.copy()

    @property
    def _number(self) -> int:
        return self._communicator.membership.initial_ranks[self._communicator.rank]

    # Checkpoints

    def specs(self) -> list[Spec]:
        """Return shape and dtype of the arrays that `collect` allocates."""
        return [Spec((self._communicator.size, array.size), _FLOAT32) for _, array in sorted(self._arrays.items())]

    def collect(self, memory: SnapshotMemory) -> dict[int, np.ndarray]:
        """Return, on the chief, the residuals of each variable by number, a row per rank. All ranks must call this."""
        communicator = self._communicator
        sizes: dict[int, int] = {}
        for of_rank in communicator.all_gather_object([[number, own.size] for number, own in self._arrays.items()]):
            sizes.update(of_rank)
        found = {}
        for number, size in sorted(sizes.items()):
            own = self._arrays.get(number, np.zeros(size, _FLOAT32))  # a rank that has just joined has none
            rows = collect_rows(communicator, own, memory)
            if rows is not None:
                found[number] = rows
        return found

    def load(self, all_ranks: Mapping[int, np.ndarray]) -> None:
        """Restore what `collect` returned. On another number of ranks, each takes an equal part of the sum."""
        communicator = self._communicator
        self._arrays = {}
        for number, rows in all_ranks.items():
            is_own = len(rows) == communicator.size
            own = rows[communicator.rank] if is_own else rows.sum(axis=0) / np.float32(communicator.size)
            self._arrays[number] = np.array(own, _FLOAT32)
