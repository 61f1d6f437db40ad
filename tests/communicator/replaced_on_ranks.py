"""Run by `test_lost.py` under mpirun with ULFM, with spares: ranks that kill themselves at any time are replaced.

All count how many ranks have been in how many rounds. What a rank is in the middle of when another dies is random: a
sum, the change to other ranks, or the change after that. The chief dies as well, when rank 3 has been replaced by one
that stays.
"""

import os
import random
import signal
import sys

import numpy as np

from easyscale import communicator, exchange
from easyscale.errors import LostError

LOSSES, ROUNDS_BETWEEN = int(sys.argv[1]), 20
comm = communicator.get()
ring = exchange.get("ring")
dies = random.SystemRandom()
joined_as = comm.rank if comm.membership.is_joining else None
replaced, rounds, again = [], 0, False


def die_soon():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, wherever it is
    signal.setitimer(signal.ITIMER_REAL, dies.uniform(0.0, 0.4))


def live_on():
    """Do not die any more: so all that have met know that it was the last time, or none does."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def agree():
    """All have what the one has that has come furthest, and check that they all know each other."""
    global rounds, replaced
    all_ranks = comm.all_gather_object([rounds, replaced, comm.membership.initial_ranks])
    assert all(ranks == all_ranks[0][2] for _, _, ranks in all_ranks)
    assert len(set(comm.membership.initial_ranks)) == comm.size
    rounds, replaced = max(all_ranks)[:2]


def is_replaced(rank):
    ranks, world_ranks = comm.membership.initial_ranks, comm.membership.world_ranks
    return rank in ranks and world_ranks[ranks.index(rank)] >= 4


def admit():
    if comm.rank == 0:
        wrong = comm.membership.replace_lost("what the spare needs to know")
        assert wrong is None, wrong
    newcomers = comm.all_gather_object(comm.membership.ready("the sums"))[0]
    if newcomers:
        comm.membership.admit(newcomers)
        agree()
        replaced.extend(rank for rank, _ in newcomers)


if comm.membership.is_joining:
    assert comm.membership.note == "what the spare needs to know"
    with comm.membership.rehearsing():
        vector = np.full(10_000, 7.0)
        ring.allreduce(vector)
        assert comm.all_gather_object("me") == ["me"] * comm.size
    assert comm.membership.join("the sums")
    assert comm.membership.initial_ranks[comm.rank] == joined_as
    if dies.random() < 0.9 and joined_as != 3:
        die_soon()
elif comm.rank > 0:
    die_soon()
must_agree, lives = joined_as is not None, True
end = False
while not end:
    try:
        if must_agree:
            agree()
            must_agree = False
        else:
            admit()
        if joined_as is None and comm.rank == 0 and is_replaced(3) and lives:
            die_soon()
            lives = False
        for _ in range(ROUNDS_BETWEEN):
            vector = np.full(10_000, float(comm.rank))
            ring.allreduce(vector)
            assert (vector == comm.size * (comm.size - 1) / 2).all()
            rounds += 1
        near = comm.all_gather_object(len(replaced) >= LOSSES and is_replaced(0))[0]
        if near:
            live_on()  # whoever comes to the next meeting
        assert len(set(comm.all_gather_object(rounds))) == 1
        end = near
    except LostError:
        comm.membership.revoke()
        again = True
        while again:
            assert comm.membership.regroup(again).again
            again = False
            ring.shrink()
            try:
                agree()
                must_agree = False
            except LostError:
                comm.membership.revoke()
                again = True
print(
    f"end of rank {comm.membership.initial_ranks[comm.rank]} after {rounds} rounds, {len(replaced)} replaced",
    flush=True,
)
os._exit(0) if comm.size == 1 else None
