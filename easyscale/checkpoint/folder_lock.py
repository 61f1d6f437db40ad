"""A lock for a folder that one process at a time may write to."""

import contextlib
import errno
import fcntl
import os
import socket
import time
import warnings
from pathlib import Path

from easyscale.errors import EasyScaleError, EasyScaleWarning

__all__ = ["FolderLock"]

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # the file system has none
_POLL = 0.1  # seconds


class FolderLock:
    """A lock on a folder that is released when its process ends, however it ends: a kernel lock on a file in it.

    The error for another process names the host and the process that hold it. A forked child does not inherit it.
    Within a process the last to take it holds it: an interrupted `fit()` may not have released it.

    Args:
        folder: `Path`. It must exist when the lock is taken.

    Example:

    >>> import tempfile
    >>> lock = FolderLock(Path(tempfile.mkdtemp()))
    >>> lock.take()
    >>> lock.release()
    """

    _held: dict[str, "FolderLock"] = {}  # by the real path of the folder, in this process

    def __init__(self, folder: Path):
        self._folder, self._path = folder, folder / ".easyscale.lock"
        self._file: int | None = None

    def take(self, patience: float = 0.0) -> None:
        """Take the lock, unless this object already holds it.

        Args:
            patience: Float. Seconds to wait for a process that has the lock, and may be about to end. Defaults to `0`.

        Raises:
            EasyScaleError: If another process has it.
            OSError: If the folder cannot be written to.
        """
        if self._file is not None:
            return
        path = os.path.realpath(self._folder)
        if path in self._held:
            self._held[path].release()
        end = time.monotonic() + patience
        while (file := self._try()) is None:
            if time.monotonic() >= end:
                raise EasyScaleError(
                    f"a folder of checkpoints is for one job at a time. Received: '{self._folder}', which "
                    f"{self._holder()} has. Wait for its end, or use another folder"
                )
            time.sleep(_POLL)
        self._file, self._held[path] = file, self
        with contextlib.suppress(OSError):  # a full disk
            os.ftruncate(file, 0)
            os.pwrite(file, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock, if this object holds it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                if self._is_in_place(self._file):
                    self._path.unlink()  # while nobody else can have it
            self._forget()

    def _forget(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None
        for path in [path for path, lock in self._held.items() if lock is self]:
            del self._held[path]

    def _try(self) -> int | None:
        """Return the file descriptor if it could be locked, else `None`."""
        flags = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        while True:
            try:
                file = os.open(self._path, flags | os.O_RDWR, 0o666)
            except PermissionError:  # left by another user, who may share the folder
                file = os.open(self._path, os.O_RDONLY | flags & ~os.O_CREAT)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(file)
                    if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                        raise
                    return None
                warnings.warn(
                    f"the file system of a folder of checkpoints should have locks. Received: '{self._folder}' "
                    f"({error.strerror}). Two jobs that write there would not be noticed",
                    EasyScaleWarning,
                    stacklevel=3,
                )
                return file
            if self._is_in_place(file):
                return file
            os.close(file)  # its previous holder has removed it

    def _is_in_place(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def _holder(self) -> str:
        with contextlib.suppress(OSError, UnicodeError, ValueError):
            file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                host, number = os.pread(file, 300, 0).decode().split()
            finally:
                os.close(file)
            if host.isprintable() and number.isdigit():
                return f"process {number} on {host}"
        return "another job"


def _leave_to_the_parent() -> None:
    for lock in list(FolderLock._held.values()):
        lock._forget()


os.register_at_fork(after_in_child=_leave_to_the_parent)
