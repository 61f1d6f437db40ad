"""Random sparsification: a few numbers of a gradient, at positions that are the same on all ranks."""

import numpy as np

from easyscale.compression.compression import Compression, StepOfForm, SupportsReduce
from easyscale.compression.share import check_share, count_of

__all__ = ["RandomK"]


class RandomK(Compression):
    """The `share` of a gradient's numbers that is drawn in this step; the others are zero.

    All ranks draw the same positions, from a seed and the number of the step. So no index travels, and the ranks'
    numbers at these positions are summed as they are, through any exchange: the sum is exact, and each rank leaves out
    only numbers of its own gradient. A vector of `S` bytes travels as `share * S`.

    A vector is cut into `share * n` pieces of nearly equal length, and one number of each is drawn. So a number is sent
    in about one of `1 / share` steps, and its residual is what has accumulated since; see `ErrorFeedback`. With a share
    of 1 nothing is left out, and sums are those without compression.

    Args:
        share: Float, above 0, at most 1. Defaults to `0.01`.
        seed: Int. The same on all ranks. Defaults to `0`.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> distribute = easyscale.callbacks.Distribute("ring", compression=RandomK(0.01))

    References: Wangni et al., "Gradient sparsification for communication-efficient distributed optimization", 2018;
    Stich et al., "Sparsified SGD with memory", 2018.
    """

    name = "random_k"
    keeps_error = True

    def __init__(self, share: float = 0.01, seed: int = 0):
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ValueError(f"`seed` must be an integer, 0 or more. Received: {seed=}. Use such as 0")
        self.share, self.seed = check_share(share), seed

    def sum(
        self,
        exchange: SupportsReduce,
        vector: np.ndarray,
        step: StepOfForm,
        left_out: np.ndarray | None = None,
        gathers: bool = True,
    ) -> None:
        chosen = self._draw(vector.size, step)
        numbers = exchange.lend(chosen.size, "float32")
        np.take(vector, chosen, out=numbers, mode="clip")  # the default mode would copy `out`
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(vector.sum()):  # perhaps at a position that is not drawn
                numbers[:] = np.nan
        if left_out is not None:
            vector[chosen] = 0
            left_out += vector
        exchange.allreduce(numbers)
        vector[:] = 0
        vector[chosen] = numbers

    def _draw(self, length: int, step: StepOfForm) -> np.ndarray:
        """Return the positions that are drawn in this step, in ascending order, the same on all ranks."""
        count = count_of(self.share, length)
        bounds = np.arange(count + 1) * length // max(count, 1)
        first = step.spans[0].number if step.spans else 0  # each vector of a step has its own draw
        generator = np.random.default_rng([self.seed, step.number, first])
        return bounds[:-1] + (generator.random(count) * np.diff(bounds)).astype(np.int64)
