"""Checks of a mesh of real processes: every exchange along one axis, and who is named when one fails."""

import numpy as np

from easyscale import communicator, exchange
from easyscale.mesh import Mesh

comm = communicator.get("mpi")


def check_each_exchange_sums_along_an_axis_of_processes():
    mesh = Mesh(comm, {"data": comm.size // 2, "model": 2})
    column = range(comm.rank % 2, comm.size, 2)
    for name in exchange.available():
        along = exchange.get(name, mesh["data"])
        for length in (5, 50_000):
            buffer = along.allocate(length, np.dtype("float32"))
            buffer[:] = comm.rank
            along.allreduce(buffer)
            assert (buffer == sum(column)).all(), name
    assert mesh["model"].all_gather_object(comm.rank) == [comm.rank // 2 * 2, comm.rank // 2 * 2 + 1]


def check_ranks_have_the_names_of_the_world():
    mesh = Mesh(comm, {"data": comm.size // 2, "model": 2})
    assert mesh["model"].membership.name == f"[rank {comm.rank} of {comm.size}]"
