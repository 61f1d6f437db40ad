"""A file that is written without the operating system's page cache."""

import errno
import io
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["UncachedFile"]

_PIECE = 1 << 22  # bytes that are written at a time, from page-aligned memory
_BLOCK = 4096  # bytes; direct writes must be multiples of a disk's block


class UncachedFile(io.RawIOBase):
    """A new file that is written from start to end, bypassing the page cache where possible.

    A copy in the cache would take a core and memory that training needs, and nobody reads it soon. If the file system
    does not support direct writes, the file is written like any other.

    Args:
        path: `Path`. It must not exist, not even as a link. The user's umask applies.

    Raises:
        OSError: Also by `write` and `finish`, if there is no room.
    """

    def __init__(self, path: Path):
        super().__init__()
        self._piece, self._filled, self._size = np.frombuffer(mmap.mmap(-1, _PIECE), np.uint8), 0, 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)
        self._is_uncached = self._set_uncached(True)

    def _set_uncached(self, wanted: bool) -> bool:
        """Switch direct writes on or off; return whether they are on."""
        try:
            import fcntl

            others = fcntl.fcntl(self._file, fcntl.F_GETFL) & ~os.O_DIRECT
            fcntl.fcntl(self._file, fcntl.F_SETFL, others | os.O_DIRECT * wanted)
        except (ImportError, AttributeError, OSError):  # the system, or the file system, does not support it
            return False
        return wanted

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # any buffer: Python 3.12 has a type for it
        rest = np.frombuffer(data, np.uint8)
        length = rest.size
        while rest.size:
            count = min(rest.size, _PIECE - self._filled)
            self._piece[self._filled : self._filled + count] = rest[:count]  # other threads run meanwhile
            self._filled, rest = self._filled + count, rest[count:]
            if self._filled == _PIECE:
                self._put(_PIECE)
        self._size += length
        return length

    def finish(self) -> None:
        """Write and flush everything to the disk."""
        self._put(-(-self._filled // _BLOCK) * _BLOCK)
        os.ftruncate(self._file, self._size)
        os.fsync(self._file)

    def _put(self, length: int) -> None:
        done = 0
        while done < length:
            try:
                done += os.write(self._file, self._piece[done:length].data)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_uncached:
                    raise
                self._is_uncached = self._set_uncached(False)  # as on a disk with larger blocks
        self._filled = 0

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()
