"""PowerSGD: what its factors are, what is sent of them, and what becomes of the rest."""

import re

import numpy as np
import pytest

from easyscale import exchange as exchanges
from easyscale.compression import PowerSGD, Span, StepOfForm

KERNEL, BIAS, CONVOLUTION = Span(3, 0, 1200, (40, 30)), Span(1, 1216, 1246, (30,)), Span(7, 1248, 1698, (3, 3, 5, 10))
SPANS, LENGTH = [KERNEL, BIAS, CONVOLUTION], 1712


def _given(size, rank=None):
    """A vector for each rank, with zeros between gradients; the sum of all kernels has this rank."""
    generator = np.random.default_rng(0)
    given = np.zeros((size, LENGTH), "float32")
    for span in SPANS:
        given[:, span.start : span.stop] = generator.normal(size=(size, span.stop - span.start))
    if rank is not None:
        thin = generator.normal(size=(size, 40, rank)), generator.normal(size=(rank, 30))
        given[:, :1200] = (thin[0] @ thin[1]).reshape(size, -1)
    return given


def _summed(run_ranks, form, given, steps=1, exchange="ring"):
    """What each rank has after some steps of these gradients, what is left out, its factors, and what it has sent."""

    def on_rank(comm):
        factors, way = {}, exchanges.get(exchange, comm)
        for number in range(steps):
            vector, left_out, before = given[comm.rank].copy(), np.zeros(LENGTH, "float32"), comm.sent.bytes
            form.sum(way, vector, StepOfForm(number, SPANS, factors), left_out)
        return vector, left_out, factors, comm.sent.bytes - before

    return run_ranks(len(given), on_rank)


@pytest.mark.parametrize("exchange", ["ring", "tree", "shared_memory"])
def test_a_sum_of_low_rank_is_exact_in_one_step(run_ranks, exchange):
    given = _given(3, rank=2)
    found = _summed(run_ranks, PowerSGD(2), given, exchange=exchange)
    np.testing.assert_allclose(sum(left_out[:1246] for _, left_out, *_ in found), 0, atol=1e-4)
    for vector, _, factors, _ in found:
        np.testing.assert_allclose(vector[:1246], given.sum(axis=0)[:1246], rtol=0, atol=1e-4)
        assert {number: factor.shape for number, factor in factors.items()} == {3: (30, 2), 7: (10, 2)}
        np.testing.assert_allclose(factors[3].T @ factors[3], np.eye(2), atol=1e-5)


def test_equal_steps_come_to_the_nearest_matrix_of_low_rank(run_ranks):
    given = _given(3)
    kernel = given.sum(axis=0)[:1200].reshape(40, 30)
    values = np.linalg.svd(kernel, compute_uv=False)
    vector, *_ = _summed(run_ranks, PowerSGD(4), given, steps=60)[0]
    off = np.linalg.norm(vector[:1200].reshape(40, 30) - kernel)
    assert np.linalg.norm(values[4:]) <= off * 1.0001 <= 1.02 * np.linalg.norm(values[4:])


def test_vectors_travel_as_they_are(run_ranks):
    given = _given(3)
    for vector, left_out, *_ in _summed(run_ranks, PowerSGD(1), given):
        np.testing.assert_allclose(vector[1216:1246], given.sum(axis=0)[1216:1246], rtol=1e-4, atol=1e-5)
        assert not left_out[1216:1246].any()
        assert not vector[1246:1248].any()


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_factors_and_vectors_are_all_that_is_sent(run_ranks, rank):
    numbers = rank * (40 + 30) + 30 + rank * (45 + 10)
    for *_, sent in _summed(run_ranks, PowerSGD(rank), _given(3)):
        assert abs(sent - 2 * 4 * numbers * 2 / 3) <= 2 * 4 * 3 * 2


def test_where_factors_are_not_smaller_a_matrix_travels_as_it_is(run_ranks):
    given = _given(2)
    for vector, left_out, factors, _ in _summed(run_ranks, PowerSGD(20), given):
        np.testing.assert_allclose(vector, given.sum(axis=0), rtol=1e-4, atol=1e-5)
        assert not left_out.any() and not factors


def test_before_its_first_step_nothing_is_left_out(run_ranks):
    given = _given(3)
    for steps, is_whole in ((2, True), (3, False)):
        for vector, left_out, factors, _ in _summed(run_ranks, PowerSGD(1, start_step=2), given, steps):
            assert np.allclose(vector, given.sum(axis=0), atol=1e-4) == is_whole
            assert left_out.any() != is_whole and bool(factors) != is_whole


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_step_that_fails_is_seen_and_leaves_the_factors_as_they_were(run_ranks, value):
    def on_rank(comm):
        factors, way = {}, exchanges.get("ring", comm)
        PowerSGD(2).sum(way, _given(2)[comm.rank], StepOfForm(0, SPANS, factors))
        before, vector = factors[3].copy(), _given(2)[comm.rank]
        if comm.rank == 1:
            vector[:1200] = value
        PowerSGD(2).sum(way, vector, StepOfForm(1, SPANS, factors))
        return vector, factors[3], before

    for vector, after, before in run_ranks(2, on_rank):
        assert np.isfinite(vector[:1200]).all() == (value == 1e30)
        assert np.isfinite(after).all()
        if value != 1e30:
            np.testing.assert_array_equal(after, before)


def test_gradients_of_zeros_stay_so(run_ranks):
    for vector, left_out, factors, _ in _summed(run_ranks, PowerSGD(2), np.zeros((2, LENGTH), "float32"), steps=2):
        assert not vector.any() and not left_out.any()
        assert np.isfinite(factors[3]).all()


NO_STEP = "`start_step` must be an integer, 0 or more. Received:"
LEAVE_OUT = "Leave it out to send low ranks from the first step on"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"rank": 0}, "`rank` must be an integer, 1 or more. Received: rank=0. Use such as 4"),
        ({"rank": 2.5}, "`rank` must be an integer, 1 or more. Received: rank=2.5. Use such as 4"),
        ({"start_step": -1}, f"{NO_STEP} start_step=-1. {LEAVE_OUT}"),
        ({"start_step": True}, f"{NO_STEP} start_step=True. {LEAVE_OUT}"),
    ],
)
def test_what_it_cannot_be_is_refused(arguments, line):
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        PowerSGD(**arguments)
