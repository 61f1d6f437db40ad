"""Log files: one for the output of each rank, and one for what the launcher shows."""

import errno
import os
import stat
from pathlib import Path

from easyscale.errors import LaunchError

__all__ = ["Logs"]


class Logs:
    """Writes output to files in a folder: `rank_0.log`, ..., and `job.log`. Existing files are overwritten.

    A line is written once it is complete, because pieces of several streams may arrive interleaved.

    A file that can no longer be written, e.g. because the disk is full, is left as it is, and `failure` says so. Other
    users may be able to write to the folder, so links are not followed, and named pipes are not opened.

    Args:
        folder: Path. It is created if it does not exist.

    Attributes:
        failure: String. The reason why the first lines were lost; `None` if none were.

    Raises:
        LaunchError: If it cannot be created, or one of these file names is taken by a link or by no regular file.
    """

    def __init__(self, folder: str):
        self._folder = Path(folder)
        self._begun: set[str] = set()
        self.failure: str | None = None
        self._lines: dict[tuple[str, str | int], bytes] = {}  # incomplete lines, by file and source
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write("job.log", b"")
            for path in self._folder.glob("rank_*.log"):
                os.close(_opened(path))
        except OSError as error:
            raise LaunchError(
                f"--log-dir must be a folder that can be written to. Received: '{folder}' ({error.strerror}). "
                "Name another one"
            ) from None

    def of_rank(self, rank: int, stream: str, data: bytes) -> None:
        """Log what a rank has written to one of its streams."""
        self._add(f"rank_{rank}.log", stream, data)

    def shown(self, file: int, data: bytes) -> None:
        """Log what the launcher shows on one of its file descriptors."""
        self._add("job.log", file, data)

    def end(self) -> None:
        """Write the incomplete lines."""
        for (name, _), line in self._lines.items():
            self._try_to_write(name, line)
        self._lines.clear()

    def _add(self, name: str, source: str | int, data: bytes) -> None:
        whole, end, self._lines[name, source] = (self._lines.get((name, source), b"") + data).rpartition(b"\n")
        self._try_to_write(name, whole + end)

    def _try_to_write(self, name: str, data: bytes) -> None:
        try:
            if data:
                self._write(name, data)
        except (OSError, LaunchError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.failure = self.failure or f"{self._folder / name}: {reason}"

    def _write(self, name: str, data: bytes) -> None:
        file = _opened(self._folder / name)
        try:
            if name not in self._begun:
                os.ftruncate(file, 0)
                self._begun.add(name)
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)


def _opened(path: Path) -> int:
    """Open a file for appending.

    Raises:
        LaunchError: If it is a link, has a second name, or is not a regular file.
        OSError: If it cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
    else:
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return file
        os.close(file)
    raise LaunchError(
        f"a log must be a file of its own. Received: '{path}', which is a link, has a second name or is no file. "
        "Remove it, or name another --log-dir"
    )
