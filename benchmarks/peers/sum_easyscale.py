"""Sums vectors with EasyScale's exchanges and, by itself, with mpi4py. Started by `easyscale launch`."""

import time

import numpy as np
from mpi4py import MPI
from turns import serve

import easyscale

communicator = easyscale.communicator.get()
buffers = {}


def prepare(exchange, nbytes):
    """Return the function that sums, and the vector."""
    if exchange == "MPI_Allreduce":
        vector = np.zeros(nbytes // 4, "float32")
        return lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, vector), vector
    connected = easyscale.exchange.get(exchange, communicator)
    vector = connected.allocate(nbytes // 4, "float32")
    return lambda: connected.allreduce(vector), vector


def work(exchange, nbytes, repeats):
    if (exchange, nbytes) not in buffers:
        buffers[exchange, nbytes] = prepare(exchange, nbytes)
    allreduce, vector = buffers[exchange, nbytes]
    times = []
    for _ in range(repeats):
        vector[:] = communicator.rank + 1
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        allreduce()
        times.append(time.perf_counter() - start)
    assert (vector == communicator.size * (communicator.size + 1) // 2).all()
    return times


serve(work, rank=communicator.rank)
