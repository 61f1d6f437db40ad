"""Sums of gradients over ranks that travel in a form. NumPy only."""

from collections.abc import Callable, Mapping

import numpy as np

from easyscale.compression import Compression, Span, StepOfForm
from easyscale.exchange import Exchange
from easyscale.layout.bucket import Bucket

__all__ = ["CompressedSums"]


class CompressedSums:
    """The sums of one optimizer's gradients, in the form in which they travel.

    Only gradients travel in it, and of those only float32 ones that are not rows: weights, moving statistics and all
    else travel as they are.

    Args:
        form: `Compression`.
        count: Function. Returns how many exchanges of gradients there were, the same on all ranks.
    """

    def __init__(self, form: Compression, count: Callable[[], int]):
        self._form, self._count = form, count

    def way(
        self, exchange: Exchange, bucket: Bucket, numbers: Mapping[int, int], gathers: bool
    ) -> Callable[[np.ndarray], None] | None:
        """Return a function that sums a vector over ranks, in place; `None` if it travels as it is.

        Args:
            exchange: The `Exchange` along which it travels.
            bucket: The vector's `Bucket`.
            numbers: Dict. For each slot's index that has a gradient the number of its variable.
            gathers: Bool. Whether the whole sum is needed on each rank, or only what the rank owns of it.
        """
        if bucket.dtype != np.float32:
            return None
        slots = [slot for slot in bucket.slots if slot.index in numbers]
        spans = [Span(numbers[slot.index], slot.start, slot.stop, slot.shape) for slot in slots]
        edges = [0, *(edge for span in spans for edge in (span.start, span.stop)), bucket.length]
        gaps = [slice(*edge) for edge in zip(edges[::2], edges[1::2], strict=True) if edge[0] < edge[1]]

        def add_up(vector: np.ndarray) -> None:
            for gap in gaps:  # whose values are undefined
                vector[gap] = 0
            self._form.sum(exchange, vector, StepOfForm(self._count(), spans), gathers)

        return add_up
