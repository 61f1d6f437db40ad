"""What ranks write, in files: one for each rank, and one for what the launcher shows."""

import contextlib
from pathlib import Path

from easyscale.errors import LaunchError

__all__ = ["Logs"]


class Logs:
    """Writes what comes to files in a folder: `rank_0.log`, ..., and `job.log`. All are written anew.

    A file that cannot be written to any more, as on a full disk, is left as it is.

    Args:
        folder: Path. It is made if it is not there.

    Raises:
        LaunchError: If it cannot be.
    """

    def __init__(self, folder: str):
        self._folder = Path(folder)
        self._begun: set[str] = set()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.shown(b"")
        except OSError as error:
            raise LaunchError(
                f"--log-dir must be a folder that can be written to. Received: '{folder}' ({error.strerror}). "
                "Name another one"
            ) from None

    def of_rank(self, rank: int, data: bytes) -> None:
        """Take in what a rank has written, to either of its streams."""
        with contextlib.suppress(OSError):
            self._write(f"rank_{rank}.log", data)

    def shown(self, data: bytes) -> None:
        """Take in what the launcher shows."""
        self._write("job.log", data)

    def _write(self, name: str, data: bytes) -> None:
        with open(self._folder / name, "ab" if name in self._begun else "wb") as file:
            self._begun.add(name)
            file.write(data)
