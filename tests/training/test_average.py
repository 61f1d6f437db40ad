"""Means over workers of what each has."""

import numpy as np

from easyscale.training.parts.metrics import average


def test_the_mean_of_what_is_equal_has_its_bits(run_ranks):
    equal = np.random.default_rng(0).normal(size=100)
    assert (np.mean([equal] * 3, axis=0) != equal).any()
    for numbers, own in run_ranks(3, lambda comm: average([equal, float(comm.rank)], comm)):
        np.testing.assert_array_equal(numbers, equal)
        assert own == 1.0
