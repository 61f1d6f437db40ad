"""A batch divided into micro-batches."""

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

__all__ = ["Batch", "Form", "sizes_of"]

Form: TypeAlias = tuple[tuple[int, ...], np.dtype]  # shape and dtype of one sample


@dataclasses.dataclass(frozen=True)
class Batch:
    """A pipeline's batch, as seen by one stage.

    Attributes:
        samples: Int. The number of samples.
        all_samples: Int. The number of samples of all pipelines in this step.
        microbatches: Int. The number of micro-batches. With fewer samples there are as many as samples.
        inputs: The model's inputs, on the first stage; empty on others.
        labels: Targets and their weights, flat, on the first stage; empty on others.
        totals: Vector, on the first stage. The divisors, over all pipelines in this step, of losses that are not means
            over samples.
    """

    samples: int
    all_samples: int
    microbatches: int
    inputs: Sequence[np.ndarray] = ()
    labels: Sequence[np.ndarray] = ()
    totals: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    @property
    def sizes(self) -> list[int]:
        """The number of samples in each micro-batch."""
        return sizes_of(self.samples, self.microbatches)

    def part(self, number: int) -> slice:
        """Return the samples of a micro-batch, as a slice."""
        sizes = self.sizes
        return slice(start := sum(sizes[:number]), start + sizes[number])


def sizes_of(samples: int, microbatches: int) -> list[int]:
    """Return the number of samples in each micro-batch: as even as possible, none of them empty.

    Example:

    >>> sizes_of(10, 4), sizes_of(2, 4)
    ([3, 3, 2, 2], [1, 1])
    """
    count = min(samples, microbatches)
    return [samples // count + (number < samples % count) for number in range(count)] if count else []
