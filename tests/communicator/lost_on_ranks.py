"""Run by `test_lost.py` under mpirun with ULFM, for one case; one rank, or two, kill themselves."""

import os
import signal
import sys
import time

import numpy as np

from easyscale import communicator
from easyscale import exchange as exchanges
from easyscale.errors import LostError
from easyscale.exchange import ParameterServer
from easyscale.layout.specs import Spec
from easyscale.serving import Client, Server, rule_of

comm = communicator.get()
LENGTH, RATE = 1000, 0.5


def die():
    print(f"killed at {time.time()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def who_is_left():
    """Ranks wait for one that is killed, leave it out, and go on with new numbers."""
    unlucky = int(sys.argv[2])
    if comm.rank == unlucky:
        die()
    try:
        comm.receive(np.empty(3), unlucky)
    except LostError as error:
        assert "no rank may fail that others wait for" in str(error), error
    else:
        raise AssertionError("received from a rank that has been killed")
    before = comm.rank
    left = [rank for rank in range(4) if rank != unlucky]
    assert comm.membership.regroup().lost == [unlucky]
    assert comm.membership.regroup().lost == []
    assert (comm.rank, comm.size) == (left.index(before), 3)
    assert comm.membership.initial_ranks == left
    assert comm.all_gather_object(before) == left
    assert comm.nodes == [[0, 1, 2]]
    buffer = np.full(7, 1.0)
    comm.all_reduce(buffer)
    assert (buffer == 3).all()


def a_server_goes_on():
    """Three workers push ones to a server for two epochs; one is killed in the first, and its steps count."""
    requests, replies = comm.duplicate(), comm.duplicate()
    weights = np.zeros(LENGTH)
    exchange = ParameterServer("bounded", staleness=2)
    server = client = None
    if comm.is_server:

        def update(gradients, rate, flags):
            weights[:] -= RATE * gradients[0]

        specs = [Spec((LENGTH,), weights.dtype)]
        server = Server(requests, replies, rule_of(exchange, 3), specs, update, lambda: [weights.copy()])
    else:
        client = Client(requests, replies, [(3, [slice(0, LENGTH)])])
    unlucky = comm.rank == 1
    applied = 0
    for epoch in range(2):
        if server is not None:
            server.serve()
            assert server.lost == ({1: 5} if epoch == 0 else {})
            applied += server.rule.staleness.applied
            assert server.rule.staleness.pushed == server.rule.staleness.applied
        else:
            client.begin_epoch()
            for step in range(20):
                client.step([np.ones(LENGTH)], [weights], 1.0, RATE)
                if unlucky and step == 4:
                    die()
            client.end_epoch(stop=False)
        lost = comm.membership.regroup().lost
        assert lost == ([1] if epoch == 0 else [])
        if lost:
            requests.membership.regroup(), replies.membership.regroup()
            (server or client).shrink(lost)
    if server is not None:
        assert applied == 2 * 20 + 5 + 2 * 20
        np.testing.assert_array_equal(weights, -RATE * applied)
    else:
        assert weights[0] <= -RATE * 40


def exchange_goes_on():
    """Whatever the exchange was in the middle of: after `revoke` and `regroup` sums are right.

    What the rank has sent last, in step 11, may be lost with it. So ranks may be a step apart when they regroup.
    """
    name, lost = sys.argv[2], int(sys.argv[3])
    unlucky = comm.rank == lost
    exchange = exchanges.get(name)
    failed, step = False, 0
    while step < 30:
        vector = exchange.lend(100_000)
        vector[:] = comm.rank
        if unlucky and step == 12:
            die()
        try:
            exchange.allreduce(vector)
        except LostError:
            assert step in (11, 12) and not failed
            failed = True
            comm.membership.revoke()
            assert comm.membership.regroup().lost == [lost]
            exchange.shrink()
            step = max(comm.all_gather_object(step))
        else:
            assert (vector == comm.size * (comm.size - 1) / 2).all()
        step += 1
    assert failed
    assert comm.size == 3


def the_first_has_left():
    """The rank that decides has come to the end of its script when another is killed: the rest regroup without both."""
    comm.barrier()
    if comm.rank == 0:
        return
    if comm.rank == 1:
        time.sleep(0.5)
        die()
    try:
        comm.receive(np.empty(1), 1)
    except LostError:
        comm.membership.revoke()
    assert comm.membership.regroup(again=True) == ([1], [], True)
    assert comm.membership.initial_ranks == [2, 3]
    assert comm.all_gather_object(comm.rank) == [0, 1]


def who_decides_is_killed():
    """Rank 3 is killed, and then rank 0, when it has told rank 1, but not rank 2, that three go on."""
    if comm.rank == 3:
        die()
    mail = comm.membership._mail
    send = mail.send

    def tell(world_rank, tag, words=None):
        if isinstance(words, dict) and world_rank == 2:
            time.sleep(0.5)  # rank 1 goes on, and waits for rank 2
            die()
        send(world_rank, tag, words)

    if comm.rank == 0:
        mail.send = tell
    lost = []
    while comm.size > 2:
        try:
            comm.barrier()
        except LostError:
            comm.membership.revoke()
        initial_ranks = comm.membership.initial_ranks
        lost += [initial_ranks[rank] for rank in comm.membership.regroup().lost]
    assert sorted(lost) == [0, 3], lost
    assert comm.membership.initial_ranks == [1, 2]
    assert comm.all_gather_object(comm.rank) == [0, 1]


globals()[sys.argv[1]]()
print(f"went on at {time.time()}", flush=True)
