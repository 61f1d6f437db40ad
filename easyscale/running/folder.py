"""What the process that called `run` and its workers leave each other, in a folder that only this user can enter.

Here, and nowhere else, something is unpickled: what processes of the same user have written a moment before.
"""

import os
import pickle
import stat
from pathlib import Path
from typing import Any, NamedTuple

from easyscale.errors import EasyScaleError

__all__ = ["Call", "Failure", "Folder", "load", "pickled"]


class Call(NamedTuple):
    """What workers are to do.

    Attributes:
        path: List of strings. `sys.path` of the process that has called `run`.
        directory: String. Its working directory.
        backend: String. The backend of its Keras; `None` if it has not imported Keras.
        is_quiet: Bool. Whether what the function raises is not shown by the worker, because it is raised there.
        name: String. What the function is called.
        function: Bytes. The function and its arguments, pickled.
    """

    path: list[str]
    directory: str
    backend: str | None
    is_quiet: bool
    name: str
    function: bytes


class Failure(NamedTuple):
    """What the function has raised on a worker.

    Attributes:
        rank: Int. The worker's number.
        when: Int. Nanoseconds since 1970.
        is_of_another: Bool. Whether it was raised because another worker had failed or left.
        message: String. The error in one line.
        traceback: String. The traceback as Python shows it.
        error: Bytes. The exception, pickled; `None` if it cannot be.
    """

    rank: int
    when: int
    is_of_another: bool
    message: str
    traceback: str
    error: bytes | None

    def order(self) -> tuple[bool, int]:
        """Return by what failures are sorted: first what is no consequence of another one, then in time."""
        return self.is_of_another, self.when


def pickled(value: Any) -> bytes:
    """Return a value as bytes: functions and classes of a script or notebook, too. Raises whatever forbids it."""
    import cloudpickle  # not before: whoever does not call `run` does not need it

    return cloudpickle.dumps(value)


def load(data: bytes) -> Any:
    """Return what `pickled` has made bytes of. Raises whatever forbids it."""
    return pickle.loads(data)


class Folder:
    """The files of one `run`.

    Args:
        path: String. A folder of this user that no other one can enter.

    Raises:
        EasyScaleError: If it is none.
    """

    def __init__(self, path: str):
        self._path = Path(path)
        found = self._path.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise EasyScaleError(
                f"the folder of a `run` must be this user's, and closed to others. Received: '{path}', of user "
                f"{found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}. Call `easyscale.run`, which makes it"
            )

    def __str__(self) -> str:
        return str(self._path)

    def give(self, call: Call) -> None:
        """Write what workers are to do."""
        self._write("call", pickle.dumps(tuple(call)))

    @property
    def call(self) -> Call:
        """What workers are to do."""
        return Call(*load((self._path / "call").read_bytes()))

    def keep_result(self, result: bytes) -> None:
        """Write what the function has returned on the chief, pickled."""
        self._write("result", result)

    @property
    def result(self) -> bytes | None:
        """What the function has returned on the chief; `None` if it has not."""
        path = self._path / "result"
        return path.read_bytes() if path.exists() else None

    def keep_failure(self, failure: Failure) -> None:
        """Write what the function has raised on a worker."""
        self._write(f"failure-{failure.rank}", pickle.dumps(tuple(failure)))

    def begin(self, rank: int) -> None:
        """Forget what a worker has raised before its job was started again."""
        (self._path / f"failure-{rank}").unlink(missing_ok=True)

    @property
    def failures(self) -> list[Failure]:
        """What the function has raised; first what is no consequence of another failure, then in time."""
        found = [Failure(*load(file.read_bytes())) for file in self._path.glob("failure-*") if not file.suffix]
        return sorted(found, key=Failure.order)

    def _write(self, name: str, data: bytes) -> None:
        """Write a file that is whole or not there."""
        part = self._path / f"{name}.part"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        part.rename(self._path / name)
