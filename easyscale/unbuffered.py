"""Unbuffered output of a rank, written whole.

With `easyscale launch` ranks write without a buffer. Python then hands each text to the system once, and drops the rest
if the system takes a part of it, as it does when a signal arrives while the reader is slow: SIGTERM, which asks for a
checkpoint, or the one that asks a rank where it is.
"""

import io
import select
import sys
from typing import Any

__all__ = ["write_whole"]


class _Whole(io.FileIO):
    """A file that writes all it is given."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            written = super().write(rest)
            if written is None:  # a file that does not wait, and takes no more now
                select.select([], [self], [])
            else:
                rest = rest[written:]
        return size


def write_whole() -> None:
    """Have `sys.stdout` and `sys.stderr` write whole texts, if they have no buffer. They stay the same objects."""
    for stream in (sys.stdout, sys.stderr):
        if type(stream) is io.TextIOWrapper and type(stream.buffer) is io.FileIO:
            encoding, errors, name = stream.encoding, stream.errors, stream.name
            stream.flush()
            whole = _Whole(stream.detach().fileno(), "wb", closefd=False)
            whole.name = name
            stream.__init__(whole, encoding=encoding, errors=errors, newline="\n", write_through=True)  # type: ignore[misc]
