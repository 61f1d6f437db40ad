"""Statistics over the data of all workers, and a fingerprint of a batch. NumPy only."""

from collections.abc import Sequence

import numpy as np

__all__ = ["describe", "unite"]


def unite(rows: np.ndarray) -> list[np.ndarray]:
    """Return the mean, variance and count of all workers' data.

        mean = sum_r(n_r mean_r) / sum_r(n_r)
        variance = sum_r(n_r (variance_r + (mean_r - mean)^2)) / sum_r(n_r)

    Unlike a difference of two large sums, this loses no digits when the mean is far from zero.

    Args:
        rows: Float64 array with one row per worker: the count, the means, and as many variances.

    Example:

    >>> mean, variance, count = unite(np.array([[1, 2.0, 0.0], [3, 6.0, 4.0]]))
    >>> mean.tolist(), variance.tolist(), count.tolist()
    ([5.0], [6.0], 4.0)
    """
    counts, means, variances = rows[:, :1], *np.split(rows[:, 1:], 2, axis=1)
    total = max(counts.sum(), np.finfo(float).tiny)
    mean = (counts * means).sum(axis=0) / total
    variance = (counts * (variances + np.square(means - mean))).sum(axis=0) / total
    return [mean, variance, counts.sum()]


def describe(vectors: Sequence[np.ndarray]) -> float:
    """Return a fingerprint of a batch from the first elements of its tensors, to detect equal batches.

    It is 0 if nothing is known of the batch: constant vectors, which are the same on all workers, do not count. It is
    always finite: NaN marks a batch whose loss is not.

    Example:

    >>> describe([np.array([1, 2]), np.ones(4)])
    5.0
    """
    described = 0.0
    for position, vector in enumerate(vectors):
        values = vector.astype("float64")
        if (values != values[:1]).any():
            with np.errstate(all="ignore"):
                described += (position + 1) * float(values @ np.arange(1.0, 1 + values.size))
    return described if np.isfinite(described) else 0.0
