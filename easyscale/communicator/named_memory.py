"""Cleanup of MPICH's named shared memory, which a killed rank would leave behind."""

import contextlib
import os
import re

__all__ = ["remove_names"]


def remove_names() -> None:
    """Unlink the memory that MPICH shares between the ranks of this node, once all of them have opened it.

    The memory stays mapped until the last rank ends, however it ends. MPICH would unlink it in `MPI_Finalize`, which a
    killed rank never reaches.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for name in set(re.findall(r" (/dev/shm/mpich_shm_\w+)$", maps.read(), re.MULTILINE)):
            with contextlib.suppress(FileNotFoundError):  # another rank was first
                os.unlink(name)
