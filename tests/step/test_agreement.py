"""What ranks agree on before they meet, and that all of them see it where they do not."""

import contextlib
import math

import numpy as np
import pytest

from easyscale.communicator.group import Group
from easyscale.errors import DesyncError
from easyscale.mesh import Mesh
from easyscale.step.agreement import Agreement, Purpose, first_difference, signature

GRADIENTS = ["(3,) float32", "(2, 2) float32", "optimizer 0"]
over_sizes = pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])


def _gradients(agreement, weight=1.0, descriptions=GRADIENTS, **options):
    return agreement.meet(Purpose.GRADIENTS, signature(descriptions), weight, descriptions=descriptions, **options)


@over_sizes
def test_equal_weights_make_equal_shares(run_ranks, size):
    for agreed in run_ranks(size, lambda comm: _gradients(Agreement(comm), 32.0)):
        assert agreed.purpose == Purpose.GRADIENTS
        assert agreed.detail == signature(GRADIENTS)
        assert agreed.share == 1 / size


@over_sizes
def test_shares_are_as_the_weights_and_make_1(run_ranks, size):
    shares = run_ranks(size, lambda comm: _gradients(Agreement(comm), comm.rank + 1.0).share)
    total = size * (size + 1) / 2
    np.testing.assert_allclose(shares, [(rank + 1) / total for rank in range(size)], rtol=1e-15)
    assert sum(shares) == pytest.approx(1, abs=1e-15)


def test_a_rank_without_samples_has_no_share(run_ranks):
    assert run_ranks(3, lambda comm: _gradients(Agreement(comm), [6.0, 0.0, 2.0][comm.rank]).share) == [0.75, 0.0, 0.25]


def test_no_samples_anywhere_make_no_share_and_no_nan(run_ranks):
    assert run_ranks(2, lambda comm: _gradients(Agreement(comm), 0.0).share) == [0.0, 0.0]


def test_gradients_that_are_not_finite_on_one_rank_make_every_share_nan(run_ranks):
    shares = run_ranks(3, lambda comm: _gradients(Agreement(comm), [8.0, math.nan, 8.0][comm.rank]).share)
    assert all(math.isnan(share) for share in shares)


def _lower_on_rank_1(purpose, weights=(3.0, 0.0, 1.0)):
    def on_rank(comm):
        agreement = Agreement(comm)
        return agreement.meet(purpose) if comm.rank == 1 else _gradients(agreement, weights[comm.rank])

    return on_rank


@pytest.mark.parametrize("purpose", [Purpose.END, Purpose.DECISION, Purpose.CHECK])
def test_a_rank_that_has_fewer_steps_is_told_what_the_others_do(run_ranks, purpose):
    for rank, agreed in enumerate(run_ranks(3, _lower_on_rank_1(purpose))):
        assert agreed == (Purpose.GRADIENTS, signature(GRADIENTS), [0.75, 0.0, 0.25][rank], False)


@pytest.mark.parametrize("low, high", [(Purpose.END, Purpose.DECISION), (Purpose.DECISION, Purpose.CHECK)])
def test_what_ranks_do_is_what_the_furthest_does(run_ranks, low, high):
    def on_rank(comm):
        return Agreement(comm).meet(low if comm.rank else high, 0 if comm.rank else 7)

    assert [agreed[:2] for agreed in run_ranks(3, on_rank)] == [(high, 7)] * 3


@over_sizes
def test_all_come_to_the_end_together(run_ranks, size):
    assert [agreed.purpose for agreed in run_ranks(size, lambda comm: Agreement(comm).meet(Purpose.END))] == [0] * size


def test_exchanges_are_counted_and_nothing_else_is(run_ranks):
    def on_rank(comm):
        agreement = Agreement(comm)
        counts = []
        for purpose in (Purpose.GRADIENTS, Purpose.ROWS, Purpose.GRADIENTS, Purpose.END, Purpose.CHECK):
            agreement.meet(purpose)
            counts.append(agreement.count)
        return counts

    assert run_ranks(3, on_rank) == [[1, 1, 2, 2, 2]] * 3


def test_what_is_exchanged_may_change_from_one_to_the_next(run_ranks):
    def on_rank(comm):
        agreement = Agreement(comm)
        lists = GRADIENTS, GRADIENTS[::-1], GRADIENTS
        return [_gradients(agreement, descriptions=descriptions).detail for descriptions in lists]

    first, second = signature(GRADIENTS), signature(GRADIENTS[::-1])
    assert first != second
    assert run_ranks(2, on_rank) == [[first, second, first]] * 2


@pytest.mark.parametrize(
    "batches, same",
    [([5.0, 5.0, 5.0], True), ([5.0, 5.0, 4.0], False), ([0.0, 0.0, 0.0], False), ([0.0, 5.0, 5.0], False)],
)
def test_the_same_batch_on_all_ranks_is_noticed(run_ranks, batches, same):
    results = run_ranks(3, lambda comm: _gradients(Agreement(comm), batch=batches[comm.rank]).same_batch)
    assert results == [same] * 3


def test_one_rank_has_nobody_to_have_the_same_batch_with(run_ranks):
    assert run_ranks(1, lambda comm: _gradients(Agreement(comm), batch=5.0).same_batch) == [False]


def _raised(run_ranks, size, meet):
    """The message of the `DesyncError` that every rank raises."""

    def on_rank(comm):
        with pytest.raises(DesyncError) as raised:
            meet(comm, Agreement(comm))
        return str(raised.value)

    messages = run_ranks(size, on_rank)
    assert len(set(messages)) == 1, messages
    return messages[0]


@pytest.mark.parametrize("size, odd", [(2, 0), (2, 1), (3, 2), (5, 3)])
def test_a_different_gradient_is_an_error_on_every_rank_that_names_the_first(run_ranks, size, odd):
    other = ["(3,) float32", "(2, 3) float32", "optimizer 1"]
    message = _raised(
        run_ranks,
        size,
        lambda comm, agreement: _gradients(agreement, descriptions=other if comm.rank == odd else GRADIENTS),
    )
    here, there = ("(2, 3)", "(2, 2)") if odd == 0 else ("(2, 2)", "(2, 3)")
    assert message == (
        "all ranks must exchange the same gradients. Received: gradients "
        f"number 1: {here} float32 on rank 0, {there} float32 on rank {odd or 1}. Run one script on all ranks"
    )


def test_a_different_number_of_gradients_is_an_error_that_says_how_many(run_ranks):
    message = _raised(
        run_ranks,
        3,
        lambda comm, agreement: _gradients(agreement, descriptions=GRADIENTS[:2] if comm.rank == 2 else GRADIENTS),
    )
    assert "Received: gradients 3 on rank 0, 2 on rank 2. Run" in message


def test_a_rank_without_data_raises_it_too_and_is_not_named(run_ranks):
    def meet(comm, agreement):
        if comm.rank in (1, 3):
            _gradients(agreement, descriptions=[f"gradient {comm.rank}"])
        else:
            agreement.meet(Purpose.END)

    assert "gradients number 0: gradient 1 on rank 1, gradient 3 on rank 3." in _raised(run_ranks, 4, meet)


def test_a_different_number_of_exchanges_so_far_is_an_error_on_every_rank(run_ranks):
    def meet(comm, agreement):
        agreement.count = 1 + (comm.rank == 1)  # as if it had exchanged with somebody else
        _gradients(agreement)

    assert _raised(run_ranks, 3, meet) == (
        "all ranks must exchange the same gradients. Received: exchanges so far: 1 on rank 0, 2 on rank 1, "
        "1 on rank 2. "
        "Run one script on all ranks"
    )


def test_errors_of_some_of_the_ranks_name_them_as_all_do(run_ranks):
    def meet(comm):
        agreement = Agreement(Group(comm, [1, 3] if comm.rank % 2 else [0, 2]))
        with pytest.raises(DesyncError) if comm.rank % 2 else contextlib.nullcontext() as raised:
            _gradients(agreement, descriptions=[f"gradient {comm.rank // 2 if comm.rank % 2 else ''}"])
        return str(raised.value) if raised else ""

    assert [" gradient 0 on rank 1, gradient 1 on rank 3." in text for text in run_ranks(4, meet)] == [False, True] * 2


def test_workers_of_several_ranks_are_told_which_column_of_them_differs(run_ranks):
    def meet(comm):
        agreement = Agreement(Mesh(comm, {"data": 2, "model": 2}).workers())
        with pytest.raises(DesyncError) as raised:
            _gradients(agreement, descriptions=["gradient", ["a slice", "b", "a slice", "c"][comm.rank]])
        return str(raised.value)

    assert all(" number 1: b on rank 1, c on rank 3." in text for text in run_ranks(4, meet))


def test_rows_of_different_lengths_are_an_error(run_ranks):
    message = _raised(run_ranks, 2, lambda comm, agreement: agreement.meet(Purpose.ROWS, 3 + comm.rank))
    assert "Received: details [3, 4] of a rows." in message


def test_ranks_in_different_epochs_are_told_where_each_is(run_ranks):
    def meet(comm, agreement):
        agreement.phase = [2, 2, 5][comm.rank]  # epoch 1 and the validation of epoch 2
        agreement.meet([Purpose.GRADIENTS, Purpose.GRADIENTS, Purpose.END][comm.rank])

    assert _raised(run_ranks, 3, meet) == (
        "all ranks must take part in the same epochs, validations and steps. Received: rank 0 exchanges gradients in "
        "epoch 1, rank 2 has come to the end of the data of the validation in epoch 2. Call `fit()` with the same "
        "`epochs` and `validation_data` on all ranks, and run one script on all"
    )


@pytest.mark.parametrize(
    "other, does", [(Purpose.ROWS, "is inside a step"), (Purpose.ACTIVATIONS, "sends activations")]
)
def test_different_things_inside_one_step_are_an_error(run_ranks, other, does):
    def meet(comm, agreement):
        agreement.meet(other if comm.rank else Purpose.GRADIENTS)

    message = _raised(run_ranks, 2, meet)
    assert f"rank 0 exchanges gradients outside of fit(), rank 1 {does} outside of fit()" in message


@pytest.mark.parametrize("other", [Purpose.END, Purpose.GRADIENTS, Purpose.STATE])
def test_who_begins_to_train_does_not_take_part_in_what_others_do(run_ranks, other):
    def meet(comm, agreement):
        agreement.phase = 0 if comm.rank else 4
        agreement.meet(Purpose.BEGIN if comm.rank else other)

    assert "rank 1 begins to train outside of fit()" in _raised(run_ranks, 3, meet)


def test_all_begin_whatever_an_earlier_training_has_left(run_ranks):
    def on_rank(comm):
        agreement = Agreement(comm)
        agreement.phase = 2 * comm.rank
        return agreement.meet(Purpose.BEGIN).purpose

    assert run_ranks(3, on_rank) == [Purpose.BEGIN] * 3


def test_an_agreement_is_one_row_of_48_bytes(run_ranks):
    def on_rank(comm):
        agreement = Agreement(comm)
        before = comm.sent.bytes
        _gradients(agreement, descriptions=GRADIENTS * 100)
        return comm.sent.messages, comm.sent.bytes - before

    assert run_ranks(4, on_rank) == [(2, 3 * 48)] * 4  # log2(4) messages, one row for each other rank


def test_a_signature_is_that_of_the_list_and_its_order():
    assert signature(GRADIENTS) == signature(tuple(GRADIENTS))
    assert (
        len({signature(descriptions) for descriptions in ([], ["ab"], ["a", "b"], ["b", "a"], ["a"], ["a", "", "b"])})
        == 6
    )
    assert all(-(2**63) <= signature([str(number)]) < 2**63 for number in range(100))


def test_first_difference_is_that_of_the_first_rank_that_differs():
    assert first_difference({0: ["a", "b"], 1: ["a", "b"], 2: ["a", "x"]}) == "number 1: b on rank 0, x on rank 2"
    assert first_difference({0: ["a", "b"], 1: ["x", "b"], 2: ["a"]}) == "number 0: a on rank 0, x on rank 1"
    assert first_difference({0: ["a", "b"], 1: ["x"]}) == "2 on rank 0, 1 on rank 1"
    assert first_difference({3: ["a", "b"], 5: ["a"]}) == "2 on rank 3, 1 on rank 5"
    assert first_difference({0: ["a"], 1: ["a"]}) == "that do not differ"
