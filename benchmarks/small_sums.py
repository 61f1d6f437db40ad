"""How long the sum of a short vector takes beside MPI's own, in turns, on the same ranks.

    python benchmarks/small_sums.py [--ranks 2,4] [--exchange shared_memory] [--bytes 4000,64000] [--rounds 30]

`MPI_Allreduce` is called by mpi4py itself, on the memory that the exchange lends. A round has 100 sums in each way. Its
time is that of the slowest rank, and figures are medians of rounds. More ranks than cores take turns on them, and MPI,
which waits busily, holds the core then.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

SUMS = 100
WAYS = ("EasyScale", "MPI_Allreduce")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--exchange", default="shared_memory")
    parser.add_argument("--bytes", default="4000,64000")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        return work(options)
    for ranks in options.ranks.split(","):
        command = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", ranks, __file__, *sys.argv[1:]]
        if subprocess.run(command, timeout=1800).returncode:
            sys.exit(f"{ranks} ranks must add up vectors. Received: an error")


def work(options):
    import numpy as np

    import easyscale

    communicator = easyscale.communicator.get()  # before mpi4py begins with MPI: it says what Open MPI is to leave out
    from mpi4py import MPI

    exchange = easyscale.exchange.get(options.exchange)
    world = MPI.COMM_WORLD.Dup()
    for nbytes in map(int, options.bytes.split(",")):
        vector = exchange.lend(nbytes // 4, "float32")
        vector[:] = 0
        sums = dict(zip(WAYS, (exchange.allreduce, lambda part: world.Allreduce(MPI.IN_PLACE, part)), strict=True))
        seconds = {way: [] for way in WAYS}
        for _ in range(options.rounds + 1):
            for way, add_up in sums.items():
                communicator.barrier()
                start = time.perf_counter()
                for _ in range(SUMS):
                    add_up(vector)
                taken = communicator.all_gather_rows(np.array([time.perf_counter() - start])).max()
                seconds[way].append(taken / SUMS)
        ours, mpi = (1e6 * float(np.median(rounds[1:])) for rounds in seconds.values())
        if communicator.rank == 0:
            found = f"{options.exchange} {ours:.1f} us, MPI_Allreduce {mpi:.1f} us: {mpi / ours:.2f} times as fast"
            print(f"P = {communicator.size}, {nbytes:9,} bytes: {found}", flush=True)


if __name__ == "__main__":
    main()
