"""The functions that a script calls beside `fit()`."""

import contextlib

import numpy as np
import pytest

import easyscale


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_worker_knows_who_it_is(run_ranks, size):
    def on_rank(comm):
        return easyscale.rank(), easyscale.size(), easyscale.local_rank(), easyscale.local_size(), easyscale.is_chief()

    assert run_ranks(size, on_rank) == [(rank, size, rank, size, rank == 0) for rank in range(size)]


def test_without_a_launcher_there_is_one_worker():
    assert (easyscale.rank(), easyscale.size()) == (0, 1)
    assert (easyscale.local_rank(), easyscale.local_size()) == (0, 1)
    assert easyscale.is_chief()


@pytest.mark.parametrize("size, global_batch, local", [(1, 1, 1), (1, 7, 7), (2, 256, 128), (3, 12, 4), (4, 4, 1)])
def test_local_batch_is_the_workers_part(run_ranks, size, global_batch, local):
    assert run_ranks(size, lambda comm: easyscale.local_batch(global_batch)) == [local] * size


@pytest.mark.parametrize(
    "size, global_batch, near",
    [
        (3, 256, "255 or 258"),
        (4, 3, "4"),
        (2, 1, "2"),
        (1, 0, "1"),
        (4, 0, "4"),
        (4, -8, "4"),
        (4, -3, "4"),
        (8, 9, "8 or 16"),
    ],
)
def test_a_global_batch_that_does_not_divide_is_an_error_that_says_what_would(run_ranks, size, global_batch, near):
    def on_rank(comm):
        with pytest.raises(ValueError) as raised:
            easyscale.local_batch(global_batch)
        return str(raised.value)

    message = (
        f"`global_batch` must be a positive multiple of the number of workers, {size}. "
        f"Received: global_batch={global_batch}. Try {near}"
    )
    assert run_ranks(size, on_rank) == [message] * size


@pytest.mark.parametrize(
    "wrong, shown",
    [("64", "'64'"), (64.0, "64.0. Try 64"), (None, "None"), (True, "True"), (float("nan"), "nan"), ([64], "[64]")],
)
def test_a_global_batch_must_be_an_integer(wrong, shown):
    with pytest.raises(ValueError) as raised:
        easyscale.local_batch(wrong)
    assert str(raised.value) == f"`global_batch` must be an integer. Received: global_batch={shown}"


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_numpys_integers_are_integers(run_ranks, kind):
    assert run_ranks(2, lambda comm: isinstance(easyscale.local_batch(kind(64)), int)) == [True, True]
    assert run_ranks(2, lambda comm: easyscale.local_batch(kind(64))) == [32, 32]


def test_scope_changes_nothing_between_processes():
    with easyscale.scope() as nothing:
        assert nothing is None
    assert isinstance(easyscale.scope(), contextlib.AbstractContextManager)


def test_in_graph_every_device_is_a_worker(run_ranks, monkeypatch):
    monkeypatch.setenv("EASYSCALE_REPLICATION", "in_graph")
    monkeypatch.setenv("EASYSCALE_DEVICES", "cpu:3")

    def on_rank(comm):
        sizes = easyscale.size(), easyscale.local_size(), easyscale.local_batch(24)
        return easyscale.rank(), easyscale.local_rank(), easyscale.is_chief(), sizes

    assert run_ranks(2, on_rank) == [(0, 0, True, (6, 6, 12)), (3, 3, False, (6, 6, 12))]
    with pytest.raises(ValueError, match="of the number of workers, 3. Received: global_batch=4. Try 3 or 6"):
        easyscale.local_batch(4)


def test_devices_count_only_in_graph(monkeypatch):
    monkeypatch.setenv("EASYSCALE_DEVICES", "4")
    assert easyscale.size() == 4, "who asks for devices means in-graph"
    monkeypatch.setenv("EASYSCALE_REPLICATION", "between_graph")
    assert easyscale.size() == 1


def test_workers_that_are_left_share_what_does_not_divide(run_ranks, monkeypatch):
    def on_rank(comm):
        monkeypatch.setattr(type(comm.membership), "has_lost", True)
        return easyscale.local_batch(8)

    assert run_ranks(3, on_rank) == [3, 3, 2]
