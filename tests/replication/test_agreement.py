"""What ranks agree on before an exchange, and that all of them see it where they do not."""

import numpy as np
import pytest

from easyscale.errors import DesyncError
from easyscale.replication.agreement import Agreement, first_difference, signature

KINDS = ["(3,) float32", "(2, 2) float32", "optimizer 0"]
over_sizes = pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])


@over_sizes
def test_equal_weights_make_equal_shares(run_ranks, size):
    def on_rank(comm):
        return Agreement(comm).reach(KINDS, 32.0)

    for agreed in run_ranks(size, on_rank):
        assert agreed.signature == signature(KINDS)
        assert agreed.share == 1 / size


@over_sizes
def test_shares_are_as_the_weights_and_make_1(run_ranks, size):
    def on_rank(comm):
        return Agreement(comm).reach(KINDS, comm.rank + 1.0).share

    shares = run_ranks(size, on_rank)
    total = size * (size + 1) / 2
    np.testing.assert_allclose(shares, [(rank + 1) / total for rank in range(size)], rtol=1e-15)
    assert sum(shares) == pytest.approx(1, abs=1e-15)


def test_a_rank_without_samples_has_no_share(run_ranks):
    def on_rank(comm):
        return Agreement(comm).reach(KINDS, [6.0, 0.0, 2.0][comm.rank]).share

    assert run_ranks(3, on_rank) == [0.75, 0.0, 0.25]


def test_no_samples_anywhere_make_no_share_and_no_nan(run_ranks):
    def on_rank(comm):
        return Agreement(comm).reach(KINDS, 0.0)

    assert run_ranks(2, on_rank) == [(signature(KINDS), 0.0)] * 2


def test_a_rank_that_has_no_more_data_is_told_what_the_others_exchange(run_ranks):
    def on_rank(comm):
        return Agreement(comm).reach([] if comm.rank == 1 else KINDS, [3.0, 0.0, 1.0][comm.rank])

    assert run_ranks(3, on_rank) == [(signature(KINDS), share) for share in (0.75, 0.0, 0.25)]


@over_sizes
def test_when_no_rank_has_more_data_there_is_nothing_to_exchange(run_ranks, size):
    assert run_ranks(size, lambda comm: Agreement(comm).reach((), 0.0)) == [None] * size


def test_exchanges_are_counted_and_the_end_is_not(run_ranks):
    def on_rank(comm):
        agreement = Agreement(comm)
        counts = [agreement.count]
        for kinds in (KINDS, KINDS[:1], (), KINDS):
            agreement.reach(kinds, 1.0)
            counts.append(agreement.count)
        return counts

    assert run_ranks(3, on_rank) == [[0, 1, 2, 2, 3]] * 3


def test_what_is_exchanged_may_change_from_one_to_the_next(run_ranks):
    def on_rank(comm):
        agreement = Agreement(comm)
        return [agreement.reach(kinds, 1.0).signature for kinds in (KINDS, KINDS[::-1], KINDS)]

    first, second = signature(KINDS), signature(KINDS[::-1])
    assert first != second
    assert run_ranks(2, on_rank) == [[first, second, first]] * 2


def _raised(run_ranks, size, kinds_of, active=lambda rank: True):
    """The message of the `DesyncError` that every rank raises."""

    def on_rank(comm):
        with pytest.raises(DesyncError) as raised:
            Agreement(comm).reach(kinds_of(comm.rank) if active(comm.rank) else (), 1.0)
        return str(raised.value)

    messages = run_ranks(size, on_rank)
    assert len(set(messages)) == 1, messages
    return messages[0]


@pytest.mark.parametrize("size, odd", [(2, 0), (2, 1), (3, 2), (5, 3)])
def test_a_different_gradient_is_an_error_on_every_rank_that_names_the_first(run_ranks, size, odd):
    other = ["(3,) float32", "(2, 3) float32", "optimizer 1"]
    message = _raised(run_ranks, size, lambda rank: other if rank == odd else KINDS)
    here, there = ("(2, 3)", "(2, 2)") if odd == 0 else ("(2, 2)", "(2, 3)")
    assert message == (
        "all ranks must exchange the same gradients. Received: gradients "
        f"number 1: {here} float32 on rank 0, {there} float32 on rank {odd or 1}. Run one script on all ranks"
    )


def test_a_different_number_of_gradients_is_an_error_that_says_how_many(run_ranks):
    message = _raised(run_ranks, 3, lambda rank: KINDS[:2] if rank == 2 else KINDS)
    assert "Received: gradients 3 on rank 0, 2 on rank 2. Run" in message


def test_a_rank_without_data_raises_it_too_and_is_not_named(run_ranks):
    message = _raised(run_ranks, 4, lambda rank: [f"kind {rank}"], active=lambda rank: rank in (1, 3))
    assert "gradients number 0: kind 1 on rank 1, kind 3 on rank 3." in message


def test_a_different_number_of_exchanges_so_far_is_an_error_on_every_rank(run_ranks):
    def on_rank(comm):
        agreement = Agreement(comm)
        agreement.reach(KINDS, 1.0)
        agreement.count += comm.rank == 1  # as if it had exchanged with somebody else
        with pytest.raises(DesyncError) as raised:
            agreement.reach(KINDS, 1.0)
        return str(raised.value)

    message = (
        "all ranks must exchange the same gradients. Received: exchanges so far on ranks 0 to 2: [1, 2, 1]. "
        "Run one script on all ranks"
    )
    assert run_ranks(3, on_rank) == [message] * 3


def test_an_agreement_is_one_row_of_32_bytes(run_ranks):
    def on_rank(comm):
        agreement = Agreement(comm)
        before = comm.sent.bytes
        agreement.reach(KINDS * 100, 1.0)
        return comm.sent.messages, comm.sent.bytes - before

    assert run_ranks(4, on_rank) == [(2, 3 * 32)] * 4  # log2(4) messages, one row for each other rank


def test_a_signature_is_that_of_the_list_and_its_order():
    assert signature(KINDS) == signature(tuple(KINDS))
    assert len({signature(kinds) for kinds in ([], ["ab"], ["a", "b"], ["b", "a"], ["a"], ["a", "", "b"])}) == 6
    assert all(-(2**63) <= signature([str(number)]) < 2**63 for number in range(100))


def test_first_difference_is_that_of_the_first_rank_that_differs():
    assert first_difference({0: ["a", "b"], 1: ["a", "b"], 2: ["a", "x"]}) == "number 1: b on rank 0, x on rank 2"
    assert first_difference({0: ["a", "b"], 1: ["x", "b"], 2: ["a"]}) == "number 0: a on rank 0, x on rank 1"
    assert first_difference({0: ["a", "b"], 1: ["x"]}) == "2 on rank 0, 1 on rank 1"
    assert first_difference({3: ["a", "b"], 5: ["a"]}) == "2 on rank 3, 1 on rank 5"
    assert first_difference({0: ["a"], 1: ["a"]}) == "that do not differ"
