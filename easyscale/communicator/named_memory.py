"""What MPICH leaves behind of a rank that is killed: memory of the ranks of a node, named as long as they run."""

import contextlib
import os
import re

__all__ = ["remove_names"]


def remove_names() -> None:
    """Take the name from the memory that MPICH made for the ranks of this node, once all of them have opened it.

    They keep the memory, and it goes with the last of them, however that ends. MPICH would remove the name in
    `MPI_Finalize`, to which a rank that is killed does not come.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for name in set(re.findall(r" (/dev/shm/mpich_shm_\w+)$", maps.read(), re.MULTILINE)):
            with contextlib.suppress(FileNotFoundError):  # another rank was first
                os.unlink(name)
