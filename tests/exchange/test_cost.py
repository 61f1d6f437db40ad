"""Each exchange's stated cost against what its ranks really send, and in how many steps that follow one another."""

import collections

import numpy as np
import pytest

from easyscale import exchange as exchanges
from easyscale.communicator import Communicator, Request
from easyscale.exchange import Cost, Exchange


def _stated(size):
    """The exchanges that state a cost."""
    return [name for name in exchanges.available() if type(exchanges.get(name)).cost(size, 4096) is not None]


STATED = _stated(2)
SENDING = [name for name in STATED if type(exchanges.get(name)).cost(2, 4096).messages]


def test_ring_tree_and_shared_memory_state_their_cost():
    assert {"ring", "shared_memory", "tree"} <= set(STATED)


@pytest.mark.parametrize(
    "name, size, cost",
    [
        ("ring", 1, Cost(0, 0, 0)),
        ("ring", 2, Cost(2, 2, 1200)),  # 2 * 1200 * 1 / 2
        ("ring", 3, Cost(4, 4, 1600)),  # 2 * 1200 * 2 / 3
        ("ring", 4, Cost(6, 6, 1800)),
        ("tree", 1, Cost(0, 0, 0)),
        ("tree", 2, Cost(2, 1, 1200)),
        ("tree", 3, Cost(4, 2, 2400)),  # the root sends to 2 and to 1
        ("tree", 5, Cost(6, 3, 3600)),
        ("tree", 8, Cost(6, 3, 3600)),
        ("tree", 9, Cost(8, 4, 4800)),
    ],
)
def test_cost_by_hand(name, size, cost):
    assert type(exchanges.get(name)).cost(size, 1200) == cost


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_busiest_rank_sends_what_the_cost_says(run_ranks, name, size, dtype):
    def on_rank(comm):
        exchange = exchanges.get(name, comm)
        buffer = np.ones(480, dtype)  # every size divides it
        exchange.allreduce(buffer)
        return comm.sent.messages, comm.sent.bytes, exchange.cost(size, buffer.nbytes)

    sent = run_ranks(size, on_rank)
    cost = sent[0][2]
    assert max(messages for messages, _, _ in sent) == cost.messages
    assert max(nbytes for _, nbytes, _ in sent) == cost.bytes


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_every_rank_of_the_ring_sends_the_same(run_ranks, size):
    def on_rank(comm):
        exchanges.get("ring", comm).allreduce(np.ones(480, "float32"))
        return comm.sent.messages, comm.sent.bytes

    assert run_ranks(size, on_rank) == [(2 * (size - 1), 2 * 1920 * (size - 1) // size)] * size


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_the_tree_carries_the_buffer_over_every_edge_twice(run_ranks, size):
    def on_rank(comm):
        exchanges.get("tree", comm).allreduce(np.ones(480, "float32"))
        return comm.sent.messages, comm.sent.bytes

    sent = run_ranks(size, on_rank)
    assert sum(messages for messages, _ in sent) == 2 * (size - 1)
    assert sum(nbytes for _, nbytes in sent) == 2 * (size - 1) * 1920


class _Timed(Communicator):
    """A communicator on which each message takes one unit of time, and a rank sends and receives one at a time.

    `sent_at` and `received_at` are the times at which the rank's last message left and came.
    """

    def __init__(self, comm, stamps):
        super().__init__()
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._stamps = comm, stamps
        self.sent_at = self.received_at = 0

    def isend(self, buffer, to):
        self.sent_at = max(self.sent_at, self.received_at) + 1
        self._stamps[self.rank, to].append(self.sent_at)
        return self._comm.isend(buffer, to)

    def ireceive(self, buffer, source):
        return _TimedReceive(self, self._comm.ireceive(buffer, source), self._stamps[source, self.rank])


class _TimedReceive(Request):
    def __init__(self, comm, request, stamps):
        self._comm, self._request, self._stamps = comm, request, stamps

    def wait(self):
        self._request.wait()
        self._comm.received_at = max(self._comm.received_at + 1, self._stamps.popleft())


@pytest.mark.parametrize("name", SENDING)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8])
def test_the_last_message_comes_after_the_steps_that_the_cost_says(run_ranks, name, size):
    stamps = {(a, b): collections.deque() for a in range(size) for b in range(size)}

    def on_rank(comm):
        timed = _Timed(comm, stamps)
        exchanges.get(name, timed).allreduce(np.ones(840, "float32"))
        return max(timed.sent_at, timed.received_at)

    steps = type(exchanges.get(name)).cost(size, 3360).steps
    assert max(run_ranks(size, on_rank)) == steps, "a rank sends one message at a time, and receives one at a time"


def test_a_cost_that_is_not_known_is_none():
    class Own(Exchange):
        def _reduce(self, buffer): ...
        def _gather(self, buffer): ...

    assert Own.cost(4, 100) is None
