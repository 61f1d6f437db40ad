"""A script that fails in the way its first argument names. NumPy only, so that it starts quickly."""

import os
import signal
import sys

import numpy as np

if sys.argv[1] == "no_mpi4py":
    sys.modules["mpi4py"] = None  # as if it were not installed

from easyscale import communicator
from easyscale import exchange as exchanges
from easyscale.errors import DesyncError

comm = communicator.get()
buffer = np.ones(10, "float32")
exchanges.get("ring", comm).allreduce(buffer)
assert (buffer == comm.size).all()


def exception_on_one_rank():
    if comm.rank == 1:
        raise ValueError("only here")
    exchanges.get("ring", comm).allreduce(buffer)


def exception_in_a_collective_of_the_library():
    if comm.rank == 1:
        raise ValueError("only here")
    exchanges.get("mpi", comm).allreduce(buffer)


def exception_on_all_ranks():
    comm.barrier()
    raise ValueError("everywhere")


def error_of_easyscale():
    if comm.rank == 1:
        raise DesyncError("ranks must agree. Received: 1 and 2. Make them equal")
    exchanges.get("tree", comm).allreduce(buffer)


def one_rank_leaves():
    if comm.rank == 1:
        sys.exit(0)
    exchanges.get("ring", comm).allreduce(buffer)


def one_rank_leaves_with_a_code():
    if comm.rank == 1:
        sys.exit(3)
    comm.barrier()


def one_rank_leaves_shared_memory():
    vector = exchanges.get("shared_memory", comm).allocate(1_000_000)
    if comm.rank == 1:
        sys.exit(0)
    exchanges.get("shared_memory", comm).allreduce(vector)


def one_rank_is_killed_in_shared_memory():
    exchange = exchanges.get("shared_memory", comm)
    vector = exchange.allocate(1_000_000)
    for number in range(1000):
        if comm.rank == 1 and number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        exchange.allreduce(vector)


def longer_message_than_expected():
    if comm.rank == 0:
        comm.send(np.zeros(20), 1)
    comm.receive(np.zeros(10), comm.rank - 1)


def shorter_vector_on_one_rank():
    exchanges.get("ring", comm).allreduce(np.zeros(90 if comm.rank == 1 else 900))
    comm.barrier()


def nothing():
    """The chief has sent what rank 1 needs and leaves: that is no failure."""
    if comm.rank == 0:
        comm.send(np.arange(3.0), 1)
    elif comm.rank == 1:
        comm.receive(np.zeros(3), 0)


globals()[sys.argv[1]]()
print(f"rank {comm.rank} came to its end")
