"""Run by `test_job_failures.py` with `--elastic --respawn`, three workers: a spare ends after its successor has begun.

Rank 1 dies. The chief calls a spare, and dies. The next chief, rank 2, calls another one for rank 1, and it joins. Only
then does the first spare notice that it is not needed, and end. The chief dies, and rank 1 comes to the end.
"""

import os
import signal
import sys
import time
from pathlib import Path

from easyscale import communicator
from easyscale.errors import LostError

begun, ended = Path(sys.argv[1], "begun"), Path(sys.argv[1], "ended")
comm = communicator.get()
is_first_chief = comm.rank == 0 and not comm.membership.is_joining


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if comm.membership.is_joining and comm.membership.note == "first":
    with comm.membership._joins:  # so that nothing ends it
        begun.write_text(str(os.getpid()))
        while not ended.exists():
            time.sleep(0.01)
    time.sleep(60)
if comm.membership.is_joining:
    assert comm.membership.join("here")
elif comm.rank == 1:
    time.sleep(5)  # until the spares have begun with MPI
    die()
must_agree = not is_first_chief
while is_first_chief or must_agree or comm.membership.initial_ranks != [2, 1]:
    try:
        if is_first_chief and begun.exists():
            die()
        if must_agree:
            comm.all_gather_object("here")
            must_agree = False
            continue
        if comm.rank == 0:
            wrong = comm.membership.replace_lost("first" if is_first_chief else "second")
            assert wrong is None, wrong
        newcomers = comm.all_gather_object(comm.membership.ready("here"))[0]
        if newcomers:
            comm.membership.admit(newcomers)
            must_agree = True
        time.sleep(0.01)
    except LostError:
        comm.membership.revoke()
        must_agree = comm.membership.regroup(again=True).again
ended.touch()
while is_there(int(begun.read_text())):
    time.sleep(0.01)
time.sleep(0.5)
if comm.rank == 0:
    die()
time.sleep(4)
print("end of rank 1")
os._exit(0)
