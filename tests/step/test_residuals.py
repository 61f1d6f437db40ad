"""What forms have left out of gradients: added once, collected, divided among another number of ranks."""

import warnings

import numpy as np
import pytest

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.compression import Span
from easyscale.errors import EasyScaleWarning
from easyscale.step.residuals import Residuals

SPANS = [Span(4, 0, 3, (3,)), Span(2, 16, 18, (2,))]


def _residuals(comm, value=0.0):
    residuals = Residuals(comm, "signs")
    left_out = residuals.begin(np.zeros(32, "float32"), SPANS)
    left_out[:] = value
    residuals.keep(left_out, SPANS, step=1)
    return residuals


def _of(residuals):
    vector = np.zeros(32, "float32")
    residuals.begin(vector, SPANS)
    return vector


def test_what_is_left_out_is_added_to_the_next_gradients_where_they_stand(run_ranks):
    def on_rank(comm):
        residuals = _residuals(comm, 0.5)
        vector = np.ones(32, "float32")
        assert not residuals.begin(vector, SPANS).any()
        return vector

    expected = np.ones(32)
    expected[0:3] = expected[16:18] = 1.5
    np.testing.assert_array_equal(run_ranks(1, on_rank)[0], expected)


def test_a_gradient_may_travel_in_another_vector(run_ranks):
    def on_rank(comm):
        vector = np.zeros(8, "float32")
        _residuals(comm, 0.5).begin(vector, [Span(2, 5, 7, (2,))])
        return vector

    np.testing.assert_array_equal(run_ranks(1, on_rank)[0], [0, 0, 0, 0, 0, 0.5, 0.5, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_is_told_of_once_and_stays_as_it_was(run_ranks, value):
    def on_rank(comm):
        residuals = _residuals(comm, 0.5)
        said = []
        for step in (7, 8):
            left_out = residuals.begin(np.zeros(32, "float32"), SPANS)
            left_out[:] = value
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                residuals.keep(left_out, SPANS, step)
            said += [str(warning.message) for warning in caught if warning.category is EasyScaleWarning]
        np.testing.assert_array_equal(_of(residuals)[:3], 0.5)
        return said

    (line,) = run_ranks(1, on_rank)[0]
    assert line.startswith("a residual must be finite. Received: infinity, or NaN, on rank 0 in step 7, with comp")


def _collected(run_ranks, size):
    def on_rank(comm):
        residuals = _residuals(comm, comm.rank + 1)
        assert [spec.shape for spec in residuals.specs()] == [(size, 2), (size, 3)]
        return {number: rows.tolist() for number, rows in residuals.collect(SnapshotMemory()).items()}

    chief, *others = run_ranks(size, on_rank)
    assert others == [{}] * (size - 1)
    return {number: np.array(rows) for number, rows in chief.items()}


def test_the_chief_collects_a_row_of_each_rank(run_ranks):
    for size in (1, 3):
        rows = _collected(run_ranks, size)
        np.testing.assert_array_equal(rows[4], [[rank + 1] * 3 for rank in range(size)])
        np.testing.assert_array_equal(rows[2], [[rank + 1] * 2 for rank in range(size)])


@pytest.mark.parametrize(("size", "expected"), [(3, [1, 2, 3]), (2, [3, 3]), (4, [1.5] * 4), (1, [6])])
def test_on_another_number_of_ranks_each_takes_an_equal_part_of_the_sum(run_ranks, size, expected):
    rows = _collected(run_ranks, 3)

    def on_rank(comm):
        residuals = Residuals(comm, "signs")
        residuals.load(rows)
        return _of(residuals)[0]

    assert run_ranks(size, on_rank) == expected
