"""What ranks write, in files: one for each rank, and one for what the launcher shows."""

import contextlib
from pathlib import Path

from easyscale.errors import LaunchError

__all__ = ["Logs"]


class Logs:
    """Writes what comes to files in a folder: `rank_0.log`, ..., and `job.log`. All are written anew.

    A line is written when it is whole: its pieces may come with those of another stream between them.

    A file that cannot be written to any more, as on a full disk, is left as it is.

    Args:
        folder: Path. It is made if it is not there.

    Raises:
        LaunchError: If it cannot be.
    """

    def __init__(self, folder: str):
        self._folder = Path(folder)
        self._begun: set[str] = set()
        self._lines: dict[tuple[str, str | int], bytes] = {}  # begun, by the file and where they come from
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write("job.log", b"")
        except OSError as error:
            raise LaunchError(
                f"--log-dir must be a folder that can be written to. Received: '{folder}' ({error.strerror}). "
                "Name another one"
            ) from None

    def of_rank(self, rank: int, stream: str, data: bytes) -> None:
        """Take in what a rank has written to one of its streams."""
        self._add(f"rank_{rank}.log", stream, data)

    def shown(self, file: int, data: bytes) -> None:
        """Take in what the launcher shows on one of its files."""
        self._add("job.log", file, data)

    def end(self) -> None:
        """Write the lines that have not come to their end."""
        for (name, _), line in self._lines.items():
            self._try_to_write(name, line)
        self._lines.clear()

    def _add(self, name: str, source: str | int, data: bytes) -> None:
        whole, end, self._lines[name, source] = (self._lines.get((name, source), b"") + data).rpartition(b"\n")
        self._try_to_write(name, whole + end)

    def _try_to_write(self, name: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if data:
                self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        with open(self._folder / name, "ab" if name in self._begun else "wb") as file:
            self._begun.add(name)
            file.write(data)
