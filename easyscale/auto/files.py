"""Files written by a script that runs on every rank.

The chief writes each file and sends the other ranks a message for it. A rank that skipped the write waits for that
message when it opens the file. This is not collective: a callback on a single rank may write as well. The chief renames
and removes these files, too. Outside of `fit()` that is collective, as no rank may still read the file; in `fit()` it
is a write like any other, of both names.

A name may differ between ranks, as when it contains the time. The other ranks' names are then links to the chief's.
"""

import builtins
import collections
import contextlib
import functools
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

from easyscale.auto.failing import failing_together
from easyscale.communicator import Communicator
from easyscale.communicator.communicator import Request
from easyscale.when_imported import when_imported

__all__ = ["Files", "forgive_folders_of_others", "is_in", "name_of"]

_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")  # a random name from `tempfile`, different on each rank
_PATIENCE = 60.0  # most seconds between the start of the first rank and that of the last
_DRAWN = 6  # least digits of a time or a random number in a name
_LONGEST = 1024  # bytes of a path, and of a message
_NAMES = ("filepath", "filename", "log_dir", "backup_dir")  # of Keras's callbacks, which write on the chief only


class Files:
    """Tracks the files that the chief writes in place of this rank.

    Args:
        communicator: `Communicator`. The constructor is collective.
        is_in_fit: Function without arguments. Returns whether a `fit()` is running.
    """

    def __init__(self, communicator: Communicator, is_in_fit: Callable[[], bool]):
        self._is_chief, self._communicator = communicator.is_chief, communicator.duplicate()
        self._all_ranks, self._is_in_fit = communicator, is_in_fit
        self._written: collections.Counter[str] = collections.Counter()  # chief's writes known to this rank
        self._skipped: collections.Counter[str] = collections.Counter()
        self._named_here: dict[str, str] = {}  # the begins of chief's paths that are others on this rank
        self._of_callbacks: set[str] = set()  # the chief's names of what Keras's callbacks write
        self._images: dict[str, io.BytesIO] = {}  # HDF5 files that this rank would have written
        self._saved: set[str] = set()  # saved by the chief, which all ranks know: the same set on each of them
        self._next_saved: set[str] = set()  # on the chief: what `publish` makes of these
        self._is_told = True  # False during a write that sends its own message
        self._sent: list[tuple[Request, np.ndarray]] = []
        self._watches, self._lock, self._process = False, threading.Lock(), os.getpid()
        when_imported("h5py", self._replace_hdf5)

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
        name = name_of(path)
        if name is None:
            return
        self._written[name] += 1
        self._next_saved.add(name)
        self._sent = [(request, note) for request, note in self._sent if not request.done()]
        for rank in range(1, self._communicator.size):
            note = np.frombuffer(os.fsencode(name).ljust(_LONGEST, b"\0"), np.uint8).copy()
            self._sent.append((self._communicator.isend(note, rank), note))

    def note_saved(self, path: Any) -> None:
        """Record that the chief has written a file while all ranks waited. All ranks must call this."""
        if (name := name_of(path)) is not None:
            self._saved.add(name)
            self._next_saved.add(name)
            self._images.pop(name, None)

    def publish(self) -> None:
        """After a `fit()`, tell all ranks what the chief has written in it. Collective: all ranks call this."""
        self._next_saved = {name for name in self._next_saved if os.path.lexists(name)}
        own = sorted(self._next_saved) if self._is_chief and self._next_saved != self._saved else None
        if (chiefs := self._all_ranks.all_gather_object(own)[0]) is not None:
            self._saved = {*chiefs}
        for name in self._saved | self._of_callbacks:
            self._link(name)

    def compare_names(self, callbacks: list) -> None:
        """Learn which files of Keras's callbacks have other names on the chief. Collective: all ranks call this."""
        found = [getattr(callback, attribute, None) for callback in callbacks for attribute in _NAMES]
        own = [name for name in map(name_of, found) if name is not None]
        if own:
            chiefs = self._all_ranks.all_gather_object(own)[0]
            self._of_callbacks.update(chiefs)
            for of_chief, name in zip(chiefs, own, strict=False):
                self._learn(of_chief, name)

    def _learn(self, chiefs: str, own: str) -> None:
        """Record that the chief names a file `chiefs` that this rank names `own`."""
        if chiefs != own:
            end = len(os.path.commonprefix([chiefs[::-1], own[::-1]]))
            while end and chiefs[-end].isalnum():  # the whole number or word is another
                end -= 1
            self._named_here[chiefs[: len(chiefs) - end]] = own[: len(own) - end]

    def _here(self, chiefs: str) -> str:
        """Return this rank's name of a file of the chief's."""
        for begin, own in self._named_here.items():
            if chiefs.startswith(begin) and not chiefs[len(begin) : len(begin) + 1].isalnum():
                return own + chiefs.removeprefix(begin)
        return chiefs

    def _link(self, chiefs: str) -> str:
        """Make this rank's name of a file, if it is another, a link to the chief's. Return this rank's name."""
        own = self._here(chiefs)
        if own != chiefs and os.path.exists(chiefs) and not os.path.lexists(own):
            os.makedirs(os.path.dirname(own), exist_ok=True)
            os.symlink(chiefs, own)
        return own

    def has(self, name: str) -> bool:
        """Return whether the chief has written a file in place of other ranks, or a file in that folder.

        Args:
            name: String. An absolute path.
        """
        of_chief = self._written if self._is_chief else self._skipped
        return name in of_chief or self._is_saved(name)

    def change(self, act: Callable[[], Any], source: str, *target: str) -> None:
        """Rename or remove such a file, on the chief.

        Args:
            act: Function without arguments. What the script calls.
            source: String. The absolute path of a file or folder for which `has` is true.
            *target: String. Its new path; none if `act` removes it.
        """
        is_alone = self._is_in_fit() or threading.current_thread() is not threading.main_thread()
        if is_alone or not self._is_saved(source):
            try:
                if self._is_chief:
                    act()
            finally:
                for name in (source, *target):
                    (self.written if self._is_chief else self.skip)(name)
        else:
            self._all_ranks.barrier()  # no rank still has to read it by this name
            with failing_together(self._all_ranks, of_chief=True):
                if self._is_chief:
                    act()
            self._saved = _moved(self._saved, source, *target)
        self._next_saved = _moved(self._next_saved, source, *target)
        image = self._images.pop(source, None)
        if image is not None and target:
            self._images[target[0]] = image

    def _is_saved(self, name: str) -> bool:
        return any(is_in(saved, name) for saved in self._saved)

    def skip(self, path: Any) -> None:
        """Record that this rank leaves a file to the chief. Opening it on this rank then waits for the chief."""
        if (name := name_of(path)) is not None:
            self._skipped[name] += 1
            self._watch()

    def wait(self, path: Any) -> None:
        """Wait until the chief has written a file as often as this rank has skipped it."""
        if not self._skipped or os.getpid() != self._process or (name := name_of(path)) is None:
            return
        if self._written[name] < self._skipped[name] and self._lock.acquire(blocking=False):
            try:
                while self._written[name] < self._skipped[name]:
                    self._receive(name)
            finally:
                self._lock.release()

    def _receive(self, awaited: str) -> None:
        """Receive the name of a file that the chief has written. Link to it if it has another name here."""
        note = np.zeros(_LONGEST, np.uint8)
        self._communicator.receive(note, 0)
        chiefs = os.fsdecode(note.tobytes().rstrip(b"\0"))
        if self._here(chiefs) not in self._skipped and _is_other_name(chiefs, awaited):
            self._learn(chiefs, awaited)
        self._written[self._link(chiefs)] += 1

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
            path = None if args or "driver" in kwargs else name_of(name)
            writes = path is not None and mode not in ("r", None)
            opened = name, mode
            if path is not None and not self._is_chief:
                if writes or path in self._images:
                    opened = self._image(path, mode)
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

    def _image(self, path: str, mode: str | None) -> tuple[io.BytesIO, str | None]:
        """Return an in-memory HDF5 file, and the mode to open it in.

        It has this rank's last content, or that on disk if the file is older than the job or was saved by the chief.
        """
        if mode in ("w", "w-", "x"):
            self._images[path] = io.BytesIO()
        elif path not in self._images:
            is_whole = os.path.exists(path) and (path in self._saved or os.path.getmtime(path) < _begin())
            self._images[path] = io.BytesIO(Path(path).read_bytes() if is_whole else b"")
        image = self._images[path]
        return image, "w" if mode in ("a", "w-", "x") and not image.getbuffer().nbytes else mode


def name_of(path: Any) -> str | None:
    """Return the absolute path; `None` if it is not a path, is this rank's own temporary one, or is very long."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    name, folder = os.path.abspath(os.fsdecode(path)), os.getcwd()
    if len(os.fsencode(name)) > _LONGEST:
        return None
    drawn = [part for part in name.split(os.sep) if _TEMPORARY.fullmatch(part)]
    if not all(part in folder or any(part in argument for argument in sys.argv) for part in drawn):
        return None
    return name


def is_in(name: str, path: str) -> bool:
    """Return whether an absolute path is `path`, or that of something in the folder `path`.

    Example:

    >>> is_in("/runs/1/model.keras", "/runs/1"), is_in("/runs/10", "/runs/1")
    (True, False)
    """
    return name == path or name.startswith(path.rstrip(os.sep) + os.sep)


def _is_other_name(chiefs: str, own: str) -> bool:
    """Return whether two paths may name one file: they differ in a time or a random number only.

    Example:

    >>> _is_other_name("/runs/12:00:01/best.keras", "/runs/12:00:02/best.keras")
    True
    >>> _is_other_name("/runs/1/epoch1.keras", "/runs/1/epoch2.keras")
    False
    """
    parts, of_own = Path(chiefs).parts, Path(own).parts
    pairs = [(part, other) for part, other in zip(parts, of_own, strict=False) if part != other]
    return len(parts) == len(of_own) and len({*pairs}) == 1 and _form(pairs[0][0]) == _form(pairs[0][1]) != ""


def _form(part: str) -> str:
    """Return part of a path with its digits and hexadecimal numbers replaced; empty if these are no time or key."""
    form = re.sub(r"\d", "0", re.sub(r"[0-9a-f]{8,}", "00000000", part))
    return form if form.count("0") >= _DRAWN else ""


def _moved(names: set[str], source: str, target: str | None = None) -> set[str]:
    """Return the paths after `source` has become `target`, or is removed."""
    moved = {name for name in names if is_in(name, source)}
    return (names - moved) | {target + name.removeprefix(source) for name in moved if target is not None}


@functools.cache
def _begin() -> float:
    """Return a time before the start of any rank of this job: the launcher's start, if it runs on this host."""
    own = psutil.Process()
    for process in own.parents():
        with contextlib.suppress(psutil.Error):
            if "launch" in process.cmdline() and any(word.endswith("easyscale") for word in process.cmdline()):
                return process.create_time()
    return own.create_time() - _PATIENCE


def forgive_folders_of_others(note_own: Callable[[Any], None]) -> None:
    """Patch `os.mkdir` so that it succeeds if another rank of this job has just made the folder.

    Args:
        note_own: Function of a path. Called for a folder that this rank has made.
    """
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
            note_own(path)
            note(Path(os.path.abspath(os.fsdecode(path))))

    def note(folder: Path) -> None:
        """Record a folder that this rank has made, and its new parents, which another rank may have made."""
        while (found := folder.stat()).st_ctime >= _begin() and str(folder) not in made:
            made[str(folder)] = found.st_ino
            folder = folder.parent

    os.mkdir = mkdir
