"""Ranks that sum up vectors until rank 1 fails: `python sums.py FAULT FOLDER [EXCHANGE]`. NumPy only, to start soon."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import easyscale

fault, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "ring"
communicator = easyscale.communicator.get()
exchange = easyscale.exchange.get(name)
vector = np.ones(1000, "float32")
for _ in range(20):
    exchange.allreduce(vector)


def wait_at_this_line():
    time.sleep(1000)


if communicator.rank == 1:
    (folder / "failed").write_text(str(time.time()))
    if fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "sleeps":
        wait_at_this_line()
    elif fault.startswith("exit"):
        sys.exit(int(fault[4:]))
    elif fault == "another collective":
        communicator.barrier()
    elif fault == "ends in time":
        communicator.isend(np.ones(1), 0).wait()
        sys.exit()
if fault == "ends in time":  # rank 2 is slow, and rank 1 has ended when rank 0 waits for rank 2
    if communicator.rank == 2:
        time.sleep(6)
        communicator.isend(np.ones(1), 0).wait()
    else:
        for rank in (1, 2):
            communicator.receive(np.empty(1), rank)
else:
    exchange.allreduce(vector)
print("end of rank", communicator.rank, flush=True)
