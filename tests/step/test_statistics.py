"""Moments of a union of samples, by those of its parts."""

import numpy as np
import pytest

from easyscale.step.statistics import unite


@pytest.mark.parametrize("counts", [[5], [3, 4], [1, 0, 6], [2, 2, 2, 2]])
@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_the_moments_of_the_parts_make_those_of_the_whole(counts, mean):
    data = np.random.default_rng(0).normal(mean, 1.0, (sum(counts), 3))
    parts = np.split(data, np.cumsum(counts)[:-1])
    moments = [[part.mean(axis=0), part.var(axis=0)] if len(part) else np.zeros((2, 3)) for part in parts]
    rows = np.array([[len(part), *np.concatenate(one)] for part, one in zip(parts, moments, strict=True)])
    united, variance, count = unite(rows)
    np.testing.assert_allclose(united, data.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, data.var(axis=0), rtol=1e-6 if mean else 1e-12)
    assert count == sum(counts)


def test_no_data_at_all_make_zeros():
    mean, variance, count = unite(np.zeros((2, 5)))
    assert mean.tolist() == variance.tolist() == [0, 0] and count == 0
