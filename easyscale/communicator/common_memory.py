"""Anonymous shared memory for ranks of one node, without MPI: for elastic jobs and for groups of ranks.

MPI's windows belong to a communicator, whose ranks may fail. Here each rank creates anonymous memory, and the others
open it through its process ID. It is freed when the last rank that has it ends, however it ends.
"""

import mmap
import os
import threading

import numpy as np

from easyscale.communicator.communicator import Communicator, Window
from easyscale.errors import LostError, SharedMemoryError

__all__ = ["CommonMemory", "RehearsedMemory"]


class CommonMemory(Window):
    """Anonymous memory shared by ranks of a node. Collective: all of them must create it together.

    Args:
        node: `Communicator` of these ranks only.
        nbytes: Int. The size of this rank's part.
        in_order: Bool. Whether this machine's cores see each other's writes in program order.

    Raises:
        SharedMemoryError: If there is no room for it.
        LostError: If a rank fails in the meantime.
    """

    def __init__(self, node: Communicator, nbytes: int, in_order: bool):
        self._in_order, self._lock = in_order, threading.Lock()
        file, problem = os.memfd_create("easyscale"), None
        try:
            os.posix_fallocate(file, 0, max(1, nbytes))  # allocates the memory now
        except OSError as error:
            problem = error.strerror
        all_ranks = node.all_gather_object([os.getpid(), file, nbytes, problem])
        try:
            if any(problem for *_, problem in all_ranks):
                raise SharedMemoryError(
                    f"{node.host} must have room for what its {node.size} ranks share. Received: "
                    f"{sum(described[2] for described in all_ranks) / 1e6:.0f} MB to share, and an error: "
                    f"{next(filter(None, (problem for *_, problem in all_ranks)))}. Choose the exchange 'ring'"
                )
            self.parts = [_part(*described[:3]) for described in all_ranks]
            node.barrier()  # the others open it before it is closed here
        finally:
            os.close(file)

    def sync(self) -> None:
        if not self._in_order:
            for _ in range(2):  # earlier writes stay before the first release, later ones after the second acquire
                with self._lock:
                    pass


class RehearsedMemory(Window):
    """Stand-in for `CommonMemory` in a process that is alone: all parts are its own memory.

    Args:
        nbytes: Int. The size of a part.
        size: Int. The number of parts.
    """

    def __init__(self, nbytes: int, size: int):
        self.parts = [np.zeros(nbytes, np.uint8)] * size

    def sync(self) -> None:
        pass


def _part(pid: int, file: int, nbytes: int) -> np.ndarray:
    try:
        opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise LostError(
            "ranks of one node must see each other's processes, to share memory. Received: one that is not there. "
            "Choose the exchange 'ring'"
        ) from None
    try:
        return np.frombuffer(mmap.mmap(opened, max(1, nbytes)), np.uint8)[:nbytes]
    finally:
        os.close(opened)
