"""Which exchange and which buckets are chosen, by threads that stand for ranks and sleep as long as exchanges take."""

import time

import numpy as np
import pytest

from easyscale import communicator, exchange
from easyscale.choice import choose, of_exchange
from easyscale.errors import EasyScaleWarning, SharedMemoryError

SPECS = [((1000, 250), np.dtype("float32")), ((7,), np.dtype("float32"))]  # 1 MB and 28 bytes


class Slow(exchange.Exchange):
    """Sleeps so long for each vector, and a while for each byte."""

    def __init__(self, name, seconds=0.0, seconds_of_a_megabyte=0.0):
        self.name, self._seconds, self._of_a_megabyte = name, seconds, seconds_of_a_megabyte

    def _reduce(self, buffer):
        time.sleep(self._seconds + self._of_a_megabyte * buffer.nbytes / 1e6)

    def _gather(self, buffer):
        pass


class NoRoom(Slow):
    """Has no room on the last rank."""

    def lend(self, length, dtype="float32", common=False):
        if self.communicator.rank == self.communicator.size - 1:
            raise SharedMemoryError("/dev/shm of vm must have room. Received: 1 MB free")
        return super().lend(length, dtype, common)


def _choices(monkeypatch, usual, others=(), nodes=(3,), specs=SPECS, fixed=False, bucket_bytes=None):
    """What each rank chooses, if there are these exchanges. They are given as functions that make them."""
    monkeypatch.setattr(
        exchange, "candidates", lambda comm: [make().connect(comm) for make in [usual, *others]], raising=True
    )

    def on_rank(comm):
        chosen = choose(usual().connect(comm), specs, fixed, bucket_bytes)
        return chosen._replace(exchange=chosen.exchange.name)

    return communicator.run_ranks(sum(nodes), on_rank, nodes=nodes)


def test_what_is_usual_stays_where_another_is_hardly_faster(monkeypatch):
    found = _choices(monkeypatch, lambda: Slow("usual", 0.1), [lambda: Slow("other", 0.098)])
    assert all(choice == found[0] for choice in found)
    assert (found[0].exchange, found[0].bucket_bytes) == ("usual", None)
    assert {timing.exchange for timing in found[0].timings} == {"usual", "other"}


def test_what_is_much_faster_is_chosen_on_all_ranks_and_the_reason_said(monkeypatch):
    def slow_on_one_rank():
        made = Slow("usual", 0.0)
        made._reduce = lambda buffer: time.sleep(0.1 * (made.communicator.rank == 2))
        return made

    found = _choices(monkeypatch, slow_on_one_rank, [lambda: Slow("other", 0.01)])
    assert [choice.exchange for choice in found] == ["other"] * 3
    assert found[0].reason.startswith("exchange 'other', one vector: 1 MB in ")
    assert ", usual 1" in found[0].reason  # 100 ms and a little more


def test_short_gradients_are_not_measured(monkeypatch):
    specs = [((100,), np.dtype("float32"))]
    found = _choices(monkeypatch, lambda: Slow("usual", 0.1), [lambda: Slow("other")], specs=specs)
    assert found[0] == ("usual", None, [], "")


def test_an_exchange_without_room_on_one_rank_is_replaced_on_all(monkeypatch):
    for specs in (SPECS, [((100,), np.dtype("float32"))]):
        with pytest.warns(EasyScaleWarning, match="'other' is used instead of 'usual': /dev/shm of vm must have room"):
            found = _choices(monkeypatch, lambda: NoRoom("usual"), [lambda: Slow("other", 0.01)], specs=specs)
        assert [choice.exchange for choice in found] == ["other"] * 3


def test_an_exchange_that_was_asked_for_is_not_replaced(monkeypatch):
    found = _choices(monkeypatch, lambda: Slow("usual", 0.1), [lambda: Slow("other")], fixed=True)
    assert found[0] == ("usual", None, [], "")


@pytest.mark.parametrize(
    ("seconds", "of_a_megabyte", "expected"),
    [
        (0.0, 0.2, 100_000),  # only bytes count: the smallest buckets
        (0.1, 0.0, None),  # only messages count: one vector
    ],
)
@pytest.mark.parametrize("fixed", [False, True])
def test_between_nodes_buckets_are_as_small_as_they_can(monkeypatch, seconds, of_a_megabyte, expected, fixed):
    monkeypatch.setattr(of_exchange, "BUCKETS", [100_000, 500_000, 10_000_000])
    specs = [((50, 250), np.dtype("float32"))] * 20  # 50 KB each
    found = _choices(monkeypatch, lambda: Slow("usual", seconds, of_a_megabyte), nodes=(1, 2), specs=specs, fixed=fixed)
    assert all(choice == found[0] for choice in found)
    assert (found[0].exchange, found[0].bucket_bytes) == ("usual", expected)
    assert {timing.bucket_bytes for timing in found[0].timings} == {100_000, 500_000, None}


def test_buckets_that_were_asked_for_stay(monkeypatch):
    found = _choices(monkeypatch, lambda: Slow("usual"), nodes=(1, 1), bucket_bytes=1234)
    assert found[0].bucket_bytes == 1234


def test_the_candidates_suit_the_nodes():
    def names(comm):
        return [candidate.name for candidate in exchange.candidates(comm)]

    anywhere, of_one, of_several = {"mpi", "ring", "tree"}, {"shared_memory"}, {"hierarchical", "hierarchical:tree"}
    on_one, on_two = communicator.run_ranks(2, names)[0], communicator.run_ranks(3, names, nodes=[2, 1])[0]
    assert anywhere | of_one <= set(on_one)
    assert anywhere | of_several <= set(on_two)
    assert not of_several & set(on_one) and not of_one & set(on_two)
    assert (on_one, on_two) == (sorted(on_one), sorted(on_two))


@pytest.mark.parametrize("nodes", [[2], [3], [2, 1], [1, 1]], ids=str)
def test_real_exchanges_are_measured_and_one_is_chosen(nodes):
    def on_rank(comm):
        chosen = choose(exchange.get("auto", comm), SPECS, fixed=False)
        return chosen._replace(exchange=chosen.exchange.name)

    found = communicator.run_ranks(sum(nodes), on_rank, nodes=nodes)
    assert all(choice == found[0] for choice in found)
    assert found[0].exchange in [timing.exchange for timing in found[0].timings]
