"""Compressed sums of gradients over ranks. NumPy only."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.compression import Compression, Span, StepOfForm
from easyscale.errors import EasyScaleWarning
from easyscale.exchange import Exchange
from easyscale.layout.bucket import Bucket
from easyscale.layout.specs import Spec
from easyscale.step.residuals import Residuals

__all__ = ["CompressedSums"]


class CompressedSums:
    """The compressed sums of one optimizer's gradients.

    Only dense float32 gradients are compressed: weights, moving statistics and everything else are sent as they are.

    Args:
        form: `Compression`. The codec.
        communicator: The `Communicator`.
        count: Function. Returns the number of exchanges of gradients in this process so far, of any optimizer: the same
            on all ranks, and different in each step.

    Attributes:
        form: The `Compression`.
        keeps_error: Bool. Whether the compression error of a gradient is added to the next one.
        steps: Int. The number of steps of this optimizer that have begun.
    """

    def __init__(self, form: Compression, communicator: Communicator, count: Callable[[], int]):
        self.form, self._communicator, self._count = form, communicator, count
        self.steps, self._seen = 0, -1  # the value of `count` in the last of them
        self.keeps_error, self._residuals = form.keeps_error, Residuals(communicator, form.name)
        self._factors: dict[int, np.ndarray] = {}

    def _number(self) -> int:
        """Return the number of the current step, from 0. Its first vector begins it."""
        if (now := self._count()) != self._seen:  # the step's first vector
            self.steps, self._seen = self.steps + 1, now
        return self.steps - 1

    def shrink(self, exchanges: int) -> None:
        """Continue on changed ranks, some of which have neither steps nor factors. All ranks must call this.

        Args:
            exchanges: Int. The number of exchanges in the job, known to all ranks. It replaces the number of steps.
        """
        self.steps, self._seen = exchanges, -1
        self._factors.clear()

    def warn_of_none(self, gradients: Sequence[Spec]) -> None:
        """Warn, on the chief, if the codec makes none of these gradients smaller."""
        shapes = [spec.shape for spec in gradients]
        if shapes and not any(map(self.form.shortens, shapes)) and self._communicator.is_chief:
            warnings.warn(
                "a form must be shorter than some gradient. Received: "
                f"compression={self.form}, and gradients of which the largest is {max(shapes, key=math.prod)}: all "
                "travel as they are. Use a lower rank, or leave `compression` out",
                EasyScaleWarning,
                stacklevel=2,
            )

    def way(
        self, exchange: Exchange, bucket: Bucket, numbers: Mapping[int, int], gathers: bool
    ) -> Callable[[np.ndarray], None] | None:
        """Return a function that sums a vector over ranks, in place; `None` if it is not compressed.

        Args:
            exchange: The `Exchange` that sums it.
            bucket: The vector's `Bucket`.
            numbers: Dict. Maps the index of each slot with a gradient to the number of its variable.
            gathers: Bool. Whether each rank needs the whole sum, or only the part that it owns.
        """
        if bucket.dtype != np.float32:
            return None
        slots = [slot for slot in bucket.slots if slot.index in numbers]
        spans = [Span(numbers[slot.index], slot.start, slot.stop, slot.shape) for slot in slots]
        edges = [0, *(edge for span in spans for edge in (span.start, span.stop)), bucket.length]
        gaps = [slice(*edge) for edge in zip(edges[::2], edges[1::2], strict=True) if edge[0] < edge[1]]

        def add_up(vector: np.ndarray) -> None:
            for gap in gaps:  # their values are undefined
                vector[gap] = 0
            step = StepOfForm(self._number(), spans, self._factors)
            if self.keeps_error:
                left_out = self._residuals.begin(vector, spans)
                self.form.sum(exchange, vector, step, left_out, gathers)
                self._residuals.keep(left_out, spans, step.number + 1)
            else:
                self.form.sum(exchange, vector, step, gathers=gathers)

        return add_up

    # Checkpoints

    def specs(self) -> list[Spec]:
        """Return shape and dtype of the arrays that `collect` allocates."""
        return self._residuals.specs() + [Spec(factor.shape, factor.dtype) for factor in self._factors.values()]

    def collect(self, memory: SnapshotMemory) -> dict[str, np.ndarray]:
        """Return residuals and factors, on the chief. All ranks must call this."""
        found = {f"of_ranks/{number}": rows for number, rows in self._residuals.collect(memory).items()}
        if self._communicator.is_chief:
            found |= {f"factor/{number}": memory.copy(factor) for number, factor in self._factors.items()}
        return found

    def load(self, steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore what `collect` returned after so many steps, on this or another number of ranks."""
        self.steps, self._seen = steps, -1
        self._residuals.load(_numbered(arrays, "of_ranks/"))
        self._factors = _numbered(arrays, "factor/")


def _numbered(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[int, np.ndarray]:
    """Return the arrays whose names are this prefix and a number, by number."""
    return {int(name.removeprefix(prefix)): array for name, array in arrays.items() if name.startswith(prefix)}
