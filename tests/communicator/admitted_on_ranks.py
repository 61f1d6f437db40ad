"""Run by `test_lost.py` under mpirun with ULFM, three ranks and spares: the chief dies as it takes a newcomer in.

Ranks 1 and 2 die, and the spare for rank 2 joins first. As the one for rank 1 is ready, which has a lower world rank,
the chief is killed: when it has told the others, but not the newcomer (`others`); or the other way round (`newcomer`),
and the others go on before the newcomer speaks to them; or when it has told nobody (`nobody`). In the end there are
three ranks again, and no process besides that one of them has called.
"""

import os
import signal
import sys
import time
from pathlib import Path

from easyscale import communicator
from easyscale.errors import LostError

told, folder = sys.argv[1], Path(sys.argv[2])
joined = folder / "joined"
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


if comm.membership.is_joining:
    (folder / f"{os.getpid()}.pid").touch()
    is_late = comm.rank == 1 and comm.membership.note == "first"
    while is_late and not joined.exists():
        time.sleep(0.01)
    if not comm.membership.join("sums"):
        os._exit(0)
    joined.touch()
    time.sleep(1.0 if is_late else 0.0)  # by then the others have left out the chief
elif not is_first_chief:
    die()
must_agree, note = not is_first_chief, "first" if is_first_chief else "second"
while is_first_chief or must_agree or comm.size < 3:
    try:
        if must_agree:
            comm.all_gather_object("here")
            must_agree = False
            continue
        if comm.rank == 0:
            wrong = comm.membership.replace_lost(note)
            assert wrong is None, wrong
        ready = comm.membership.ready("sums")
        if ready and is_first_chief and joined.exists():
            if told != "nobody":
                comm.all_gather_object(ready) if told == "others" else comm.membership.admit(ready)
            time.sleep(0.2)
            die()
        newcomers = comm.all_gather_object(ready)[0]
        if newcomers:
            comm.membership.admit(newcomers)
            must_agree = True
        time.sleep(0.01)
    except LostError:
        comm.membership.revoke()
        must_agree = comm.membership.regroup(again=True).again
members, end = comm.all_gather_object(os.getpid()), time.monotonic() + 10
while others := [path for path in folder.glob("*.pid") if int(path.stem) not in members and is_there(int(path.stem))]:
    assert time.monotonic() < end, others
    time.sleep(0.1)
print(f"end of rank {comm.membership.initial_ranks[comm.rank]} {comm.membership.initial_ranks}", flush=True)
