"""Files written by a script that runs on every rank.

The chief writes each file and sends the other ranks a message for it. A rank that skipped the write waits for that
message when it opens the file. This is not collective: a callback on a single rank may write as well.
"""

import builtins
import collections
import contextlib
import functools
import hashlib
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from easyscale.communicator import Communicator
from easyscale.communicator.communicator import Request
from easyscale.data import tf_dataset
from easyscale.when_imported import when_imported

__all__ = ["Files", "forgive_folders_of_others"]

_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")  # a random name from `tempfile`, different on each rank
_PATIENCE = 60.0  # most seconds between the start of the first rank and that of the last
_DIGEST = 16


class Files:
    """Tracks the files that the chief writes in place of this rank.

    Args:
        communicator: `Communicator`. The constructor is collective.
    """

    def __init__(self, communicator: Communicator):
        self._is_chief, self._communicator = communicator.is_chief, communicator.duplicate()
        self._written: collections.Counter[bytes] = collections.Counter()  # chief's writes known to this rank
        self._skipped: collections.Counter[bytes] = collections.Counter()
        self._images: dict[bytes, io.BytesIO] = {}  # HDF5 files that this rank would have written
        self._saved: set[bytes] = set()  # saved by the chief while all ranks waited
        self._is_told = True  # False during a write that sends its own message
        self._sent: list[tuple[Request, np.ndarray]] = []
        self._watches, self._lock, self._process = False, threading.Lock(), os.getpid()
        when_imported("h5py", self._replace_hdf5)
        when_imported("tensorflow", functools.partial(tf_dataset.part_caches, communicator.rank))

    @contextlib.contextmanager
    def writing(self, path: Any) -> Iterator[None]:
        """Return a context in which the chief writes a file. On exit, also after an error, it notifies the other ranks.

        HDF5 files written inside send no message.

        Args:
            path: The file; `None` to notify nobody.
        """
        before, self._is_told = self._is_told, False
        try:
            yield
        finally:
            self._is_told = before
            self.written(path)

    def written(self, path: Any) -> None:
        """Notify the other ranks that the chief has written a file or folder."""
        key = _key(path)
        if key is None:
            return
        self._written[key] += 1
        self._sent = [(request, note) for request, note in self._sent if not request.done()]
        for rank in range(1, self._communicator.size):
            note = np.frombuffer(key, np.uint8).copy()
            self._sent.append((self._communicator.isend(note, rank), note))

    def note_saved(self, path: Any) -> None:
        """Record that the chief has written a file while all ranks waited."""
        key = _key(path)
        if key is not None:
            self._saved.add(key)
            self._images.pop(key, None)

    def skip(self, path: Any) -> None:
        """Record that this rank leaves a file to the chief. Opening it on this rank then waits for the chief."""
        key = _key(path)
        if key is not None:
            self._skipped[key] += 1
            self._watch()

    def wait(self, path: Any) -> None:
        """Wait until the chief has written a file as often as this rank has skipped it."""
        if not self._skipped or os.getpid() != self._process or (key := _key(path)) is None:
            return
        if self._written[key] < self._skipped[key] and self._lock.acquire(blocking=False):
            try:
                while self._written[key] < self._skipped[key]:
                    note = np.zeros(_DIGEST, np.uint8)
                    self._communicator.receive(note, 0)
                    self._written[note.tobytes()] += 1
            finally:
                self._lock.release()

    def _watch(self) -> None:
        """Patch `open` and `os.stat` to wait for files that the chief writes."""
        if not self._watches:
            self._watches = True
            builtins.open = io.open = self._waiting(builtins.open)
            os.stat = self._waiting(os.stat)  # used by `os.path.getsize` and `os.path.exists`

    def _waiting(self, original: Callable) -> Callable:
        @functools.wraps(original)
        def waiting(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, (str, os.PathLike)):
                self.wait(path)
            return original(path, *args, **kwargs)

        return waiting

    def _replace_hdf5(self) -> None:
        """Patch h5py: only the chief writes HDF5 files, as open ones are locked. Other ranks write theirs in memory."""
        file_class: Any = sys.modules["h5py"].File
        begin, close = file_class.__init__, file_class.close

        @functools.wraps(begin)
        def begin_file(file: Any, name: Any, mode: str | None = "r", *args: Any, **kwargs: Any) -> None:
            key = None if args or "driver" in kwargs else _key(name)
            writes = key is not None and mode not in ("r", None)
            opened = name, mode
            if key is not None and not self._is_chief:
                if writes or key in self._images:
                    opened = self._image(key, name, mode)
                (self.skip if writes else self.wait)(name)
            begin(file, *opened, *args, **kwargs)
            if writes and self._is_chief and self._is_told:
                file._easyscale_path = name

        @functools.wraps(close)
        def close_file(file: Any) -> None:
            close(file)
            if (path := vars(file).pop("_easyscale_path", None)) is not None:
                self.written(path)

        file_class.__init__, file_class.close = begin_file, close_file

    def _image(self, key: bytes, path: Any, mode: str | None) -> tuple[io.BytesIO, str | None]:
        """Return an in-memory HDF5 file, and the mode to open it in.

        It has this rank's last content, or that on disk if the file is older than the job or was saved by the chief.
        """
        if mode in ("w", "w-", "x"):
            self._images[key] = io.BytesIO()
        elif key not in self._images:
            is_whole = os.path.exists(path) and (key in self._saved or os.path.getmtime(path) < _begin())
            self._images[key] = io.BytesIO(Path(path).read_bytes() if is_whole else b"")
        image = self._images[key]
        return image, "w" if mode in ("a", "w-", "x") and not image.getbuffer().nbytes else mode


def _key(path: Any) -> bytes | None:
    """Return a path's key, the same on all ranks; `None` if it is not a path, or is this rank's own temporary one."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    name, folder = os.path.abspath(os.fsdecode(path)), os.getcwd()
    drawn = [part for part in name.split(os.sep) if _TEMPORARY.fullmatch(part)]
    if not all(part in folder or any(part in argument for argument in sys.argv) for part in drawn):
        return None
    return hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=_DIGEST).digest()


@functools.cache
def _begin() -> float:
    """Return a time before the start of any rank of this job: the launcher's start, if it runs on this host."""
    own = psutil.Process()
    for process in own.parents():
        with contextlib.suppress(psutil.Error):
            if "launch" in process.cmdline() and any(word.endswith("easyscale") for word in process.cmdline()):
                return process.create_time()
    return own.create_time() - _PATIENCE


def forgive_folders_of_others() -> None:
    """Patch `os.mkdir` so that it succeeds if another rank of this job has just made the folder."""
    original: Callable = os.mkdir
    made: dict[str, int] = {}

    @functools.wraps(original)
    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(path, *args, **kwargs)
        except FileExistsError:
            if kwargs.get("dir_fd") is not None or not os.path.isdir(path):
                raise
            found = os.stat(path)
            if found.st_ctime < _begin() or made.get(os.path.abspath(os.fsdecode(path))) == found.st_ino:
                raise
        if kwargs.get("dir_fd") is None:
            note(Path(os.path.abspath(os.fsdecode(path))))

    def note(folder: Path) -> None:
        """Record a folder that this rank has made, and its new parents, which another rank may have made."""
        while (found := folder.stat()).st_ctime >= _begin() and str(folder) not in made:
            made[str(folder)] = found.st_ino
            folder = folder.parent

    os.mkdir = mkdir
