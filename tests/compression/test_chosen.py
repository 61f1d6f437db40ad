"""Forms that choose some numbers of a gradient: which, and what is sent of them."""

import re

import numpy as np
import pytest

from easyscale import exchange as exchanges
from easyscale.compression import RandomK, Span, StepOfForm, TopK

SPANS = [Span(0, 0, 1000, (1000,))]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 1 / 3, 1.0])
@pytest.mark.parametrize("length", [1, 7, 1000, 70_000])
def test_the_largest_travel_with_their_indices(share, length):
    form, vector = TopK(share), np.random.default_rng(length).normal(size=length).astype("float32")
    count = max(1, round(share * length))
    message, back = form.pack(vector), np.full(length, np.nan, "float32")
    assert message.size == form.nbytes(length) == count * (6 if length <= 65_536 else 8)
    form.unpack(message, back)
    assert np.count_nonzero(back) == count
    np.testing.assert_array_equal(back[back != 0], vector[back != 0])
    assert np.abs(vector[back == 0]).max(initial=0) <= np.abs(back[back != 0]).min()


def test_what_is_not_finite_is_among_the_largest():
    vector = np.arange(100, dtype="float32")
    vector[[3, 50]] = np.nan, -np.inf
    back = np.empty_like(vector)
    TopK(0.03).unpack(TopK(0.03).pack(vector), back)
    np.testing.assert_array_equal(np.flatnonzero(back), [3, 50, 99])


@pytest.mark.parametrize("form", [TopK, RandomK])
@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan"), "0.1", None])
def test_a_share_is_a_part_of_all_numbers(form, share):
    line = f"`share` must be a number above 0, and 1 at most. Received: {share=}. Use such as 0.01"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        form(share)


@pytest.mark.parametrize("seed", [-1, 0.5, "1"])
def test_a_seed_is_a_number(seed):
    with pytest.raises(ValueError, match=f"`seed` must be an integer, 0 or more. Received: {seed=}"):
        RandomK(seed=seed)


def _summed(run_ranks, form, size=3, length=1000, number=7, exchange="ring"):
    given = np.random.default_rng(size).normal(size=(size, length)).astype("float32")

    def on_rank(comm):
        vector, before = given[comm.rank].copy(), comm.sent.bytes
        form.sum(exchanges.get(exchange, comm), vector, StepOfForm(number, SPANS, {}))
        return vector, comm.sent.bytes - before

    found = run_ranks(size, on_rank)
    return given, [vector for vector, _ in found], [sent for _, sent in found]


@pytest.mark.parametrize("exchange", exchanges.available())
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7])
def test_numbers_that_are_drawn_are_the_exact_sum(run_ranks, exchange, share):
    given, vectors, _ = _summed(run_ranks, RandomK(share), exchange=exchange)
    for vector in vectors:
        np.testing.assert_array_equal(vector, vectors[0])
        assert np.count_nonzero(vector) == round(share * 1000)
        drawn = vector != 0
        np.testing.assert_allclose(vector[drawn], given.sum(axis=0)[drawn], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exchange", ["ring", "tree", "shared_memory"])
def test_all_of_them_are_what_no_compression_gives(run_ranks, exchange):
    given, vectors, _ = _summed(run_ranks, RandomK(1.0), exchange=exchange)

    def on_rank(comm):
        vector = given[comm.rank].copy()
        exchanges.get(exchange, comm).allreduce(vector)
        return vector

    for vector, plain in zip(vectors, run_ranks(3, on_rank), strict=True):
        np.testing.assert_array_equal(vector, plain)


def test_no_index_is_sent(run_ranks):
    *_, sent = _summed(run_ranks, RandomK(0.012))
    assert sent == [2 * 2 * 4 * 4] * 3  # reduce and gather, to two others, 12 / 3 numbers, of 4 bytes


def test_each_step_draws_others_and_each_number_comes():
    form, drawn = RandomK(0.1), np.zeros(1000)
    for step in range(200):
        chosen = form._draw(1000, StepOfForm(step, SPANS, {}))
        assert chosen.size == np.unique(chosen).size == 100
        assert (np.diff(chosen) > 0).all() and chosen[0] >= 0 and chosen[-1] < 1000
        drawn[chosen] += 1
    assert drawn.min() >= 5 and drawn.max() <= 40  # 20 on average
    elsewhere = StepOfForm(0, [Span(1, 0, 1000, (1000,))], {})
    assert (form._draw(1000, StepOfForm(0, SPANS, {})) != form._draw(1000, elsewhere)).any()
    assert (form._draw(1000, elsewhere) != RandomK(0.1, seed=1)._draw(1000, elsewhere)).any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_shows_where_it_is_not_drawn(run_ranks, value):
    def on_rank(comm):
        vector = np.ones(1000, "float32")
        if comm.rank == 1:
            vector[:] = value
            vector[RandomK(0.01)._draw(1000, StepOfForm(7, SPANS, {}))] = 1
        RandomK(0.01).sum(exchanges.get("ring", comm), vector, StepOfForm(7, SPANS, {}))
        return vector

    for vector in run_ranks(2, on_rank):
        assert not np.isfinite(vector).all()


@pytest.mark.parametrize("length", [0, 1])
def test_there_may_be_little_to_draw_from(run_ranks, length):
    _, vectors, _ = _summed(run_ranks, RandomK(0.5), length=length)
    assert all(vector.size == length and (vector != 0).all() for vector in vectors)
