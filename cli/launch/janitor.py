"""A small process that outlives a killed launcher: it ends what is left of the job and removes its folder."""

import contextlib
import os
import shutil
import signal
import time

from easyscale.cli.launch import leftovers

__all__ = ["Janitor"]

_PATIENCE = 5.0  # seconds for mpirun to end after its launcher was killed


class Janitor:
    """Waits for this process to end, and cleans up after it unless it has called `dismiss`.

    Args:
        folder: String. The folder to remove, or `None` for none.
        mark: String. Text that only the environment of the job's processes contains.
    """

    def __init__(self, folder: str | None, mark: str):
        reader, self._pipe = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setsid()
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                os.dup2(reader, 0)
                os.closerange(3, 1 << 12)
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 1)
                os.dup2(null, 2)
                _wait_and_clean(folder, mark)
            finally:
                os._exit(0)
        os.close(reader)

    def watch(self, pid: int) -> None:
        """Set the leader of mpirun's process group."""
        os.write(self._pipe, f"{pid}\n".encode())

    def dismiss(self) -> None:
        """End the janitor: nothing needs to be cleaned up any more."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"done\n")
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _wait_and_clean(folder: str | None, mark: str) -> None:
    said = b""
    while data := os.read(0, 4096):
        said += data
    if said.endswith(b"done\n"):
        return
    if said:
        leader, end = int(said), time.monotonic() + _PATIENCE
        while _is_there(leader) and time.monotonic() < end:  # its parent's death has sent it a SIGTERM
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        time.sleep(0.2)  # ranks die with mpirun
        leftovers.end_marked(mark)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
