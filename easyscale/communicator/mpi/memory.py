"""Shared memory for the ranks of a node, as MPI windows."""

import os
import platform

import numpy as np

from easyscale.communicator.communicator import Window
from easyscale.communicator.mpi.start import MPI
from easyscale.communicator.mpi.waiting import Waiting
from easyscale.errors import SharedMemoryError

__all__ = ["IN_ORDER", "allocate_shared"]

IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")  # cores see each other's writes in program order

_ROOM_FOR_OTHERS = 1 << 20  # bytes left free for MPI itself
_SHARED_MEMORY = "/dev/shm"  # where MPI libraries allocate it on Linux


class _MpiWindow(Window):
    def __init__(self, window: MPI.Win, size: int):
        self._window = window
        self.parts = [np.asarray(window.Shared_query(rank)[0], np.uint8) for rank in range(size)]
        window.Lock_all(MPI.MODE_NOCHECK)  # without it `Sync` is not allowed

    def sync(self) -> None:
        if not IN_ORDER:
            self._window.Sync()


def allocate_shared(node: MPI.Intracomm, nbytes: int, waiting: Waiting) -> Window:
    """Return a new window with `nbytes` zeros in this rank's part. All ranks of the node must call this.

    Args:
        node: Those ranks.
        nbytes: Int.
        waiting: `Waiting`.

    Raises:
        SharedMemoryError: If the node does not have room for it.
    """
    needs = np.array([nbytes])
    node.Allreduce(MPI.IN_PLACE, needs)
    room = np.array([_room()])  # by now all ranks have filled their earlier allocations
    node.Bcast(room)
    if needs + _ROOM_FOR_OTHERS > room:
        raise SharedMemoryError(
            f"{_SHARED_MEMORY} of {os.uname().nodename} must have room for what its {node.size} ranks share. Received: "
            f"{needs[0] / 1e6:.0f} MB to share, {room[0] / 1e6:.0f} MB free{_size()}. Make it larger "
            f"(`mount -o remount,size=8G {_SHARED_MEMORY}`, `docker run --shm-size=8g`, an `emptyDir` of medium "
            "`Memory` in Kubernetes), or choose the exchange 'ring'"
        )
    info = MPI.Info.Create({"alloc_shared_noncontig": "true"})  # each part starts on a page boundary
    window = MPI.Win.Allocate_shared(nbytes, 1, info, node)
    info.Free()
    made = _MpiWindow(window, node.size)
    made.parts[node.rank][:] = 0  # allocates the pages now: if they ran out later, the process would be killed
    waiting.wait(node.Ibarrier(), "waits for shared memory")  # nobody writes before all are zero
    return made


def _room() -> int:
    """Return the number of bytes free for shared memory, or a huge number if that is unknown."""
    if not os.path.isdir(_SHARED_MEMORY):
        return 1 << 62
    free = os.statvfs(_SHARED_MEMORY)
    return free.f_bavail * free.f_frsize


def _size() -> str:
    """Return the total size of shared memory, as a phrase for an error message."""
    if not os.path.isdir(_SHARED_MEMORY):
        return ""
    found = os.statvfs(_SHARED_MEMORY)
    return f" of {found.f_blocks * found.f_frsize / 1e6:.0f} MB"
