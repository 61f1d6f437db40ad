"""What is said of the data of several workers together. NumPy only."""

from collections.abc import Sequence

import numpy as np

__all__ = ["describe", "unite"]


def unite(rows: np.ndarray) -> list[np.ndarray]:
    """Return the mean and variance of all workers' data, and how many they are.

        mean = sum_r(n_r mean_r) / sum_r(n_r)
        variance = sum_r(n_r (variance_r + (mean_r - mean)^2)) / sum_r(n_r)

    Unlike a difference of two large sums, that loses no digits when the mean is far from zero.

    Args:
        rows: Float64 array of one row for each worker: the number of data, their means, and as many variances.

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
    """Return a number that two batches have in common only if these, with which they begin, are the same.

    It is 0 if nothing is known of a batch: constants are alike on all workers. And it is finite: NaN is for a batch
    whose loss is not.

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
