"""Files that the process that called `run` and its workers exchange, in a folder that only this user can access.

Only this module unpickles data, all of it written just before by processes of the same user.
"""

import os
import pickle
import stat
from pathlib import Path
from typing import Any, NamedTuple

from easyscale.errors import EasyScaleError

__all__ = ["Call", "Failure", "Folder", "load", "pickled"]


class Call(NamedTuple):
    """The call that workers make.

    Attributes:
        path: List of strings. `sys.path` of the process that has called `run`.
        directory: String. Its working directory.
        backend: String. Its Keras backend; `None` if it has not imported Keras.
        is_quiet: Bool. Whether workers do not print the function's exceptions, because that process raises them.
        name: String. The function's name.
        function: Bytes. The function and its arguments, pickled.
    """

    path: list[str]
    directory: str
    backend: str | None
    is_quiet: bool
    name: str
    function: bytes


class Failure(NamedTuple):
    """The function's exception on a worker.

    Attributes:
        rank: Int. The worker's rank.
        when: Int. Nanoseconds since 1970.
        is_of_another: Bool. Whether it was raised because another worker had failed or left.
        message: String. The error in one line.
        traceback: String. The traceback as Python prints it.
        error: Bytes. The exception, pickled; `None` if it cannot be pickled.
    """

    rank: int
    when: int
    is_of_another: bool
    message: str
    traceback: str
    error: bytes | None

    def order(self) -> tuple[bool, int]:
        """Return the sort key of failures: those not caused by another worker's failure first, then by time."""
        return self.is_of_another, self.when


def pickled(value: Any) -> bytes:
    """Pickle a value, including functions and classes of a script or notebook. Pickling errors propagate."""
    import cloudpickle  # lazy: only `run` needs it

    return cloudpickle.dumps(value)


def load(data: bytes) -> Any:
    """Unpickle a value of `pickled`. Errors propagate."""
    return pickle.loads(data)


class Folder:
    """The files of one `run`.

    Args:
        path: String. A folder of this user that no other user can access.

    Raises:
        EasyScaleError: If other users own it or can access it.
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
        """Write the call."""
        self._write("call", pickle.dumps(tuple(call)))

    @property
    def call(self) -> Call:
        """The call that workers make."""
        return Call(*load((self._path / "call").read_bytes()))

    def keep_result(self, result: bytes) -> None:
        """Write the chief's pickled result."""
        self._write("result", result)

    @property
    def result(self) -> bytes | None:
        """The chief's pickled result; `None` if the function has not returned there."""
        path = self._path / "result"
        return path.read_bytes() if path.exists() else None

    def keep_failure(self, failure: Failure) -> None:
        """Write a worker's failure."""
        self._write(f"failure-{failure.rank}", pickle.dumps(tuple(failure)))

    def begin(self, rank: int) -> None:
        """Delete a worker's failure from before a restart of the job."""
        (self._path / f"failure-{rank}").unlink(missing_ok=True)

    @property
    def failures(self) -> list[Failure]:
        """The failures of all workers: those not caused by another worker's failure first, then by time."""
        found = [Failure(*load(file.read_bytes())) for file in self._path.glob("failure-*") if not file.suffix]
        return sorted(found, key=Failure.order)

    def _write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        part = self._path / f"{name}.part"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        part.rename(self._path / name)
