"""Unbuffered output of a rank, without lost text.

With `easyscale launch`, ranks write unbuffered. Python then calls `write` once for each text, and drops the rest after
a partial write. That happens when a signal arrives while the reader is slow: SIGTERM, which requests a checkpoint, or
the signal that requests a rank's stacks.
"""

import io
import select
import sys
from typing import Any

__all__ = ["write_whole"]


class _Whole(io.FileIO):
    """A file whose `write` is never partial."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            written = super().write(rest)
            if written is None:  # non-blocking, and full
                select.select([], [self], [])
            else:
                rest = rest[written:]
        return size


def write_whole() -> None:
    """Make unbuffered `sys.stdout` and `sys.stderr` write texts completely. They stay the same objects."""
    for stream in (sys.stdout, sys.stderr):
        if type(stream) is io.TextIOWrapper and type(stream.buffer) is io.FileIO:
            encoding, errors, name = stream.encoding, stream.errors, stream.name
            stream.flush()
            whole = _Whole(stream.detach().fileno(), "wb", closefd=False)
            whole.name = name
            stream.__init__(whole, encoding=encoding, errors=errors, newline="\n", write_through=True)  # type: ignore[misc]
