"""Checkpoints in a folder: written atomically, and checked for damage when they are read. NumPy only.

A checkpoint has its number and its checksum in its name:

    step-000000150-3f0c9a...e1.npz

It is written under an unguessable temporary name, flushed to the disk, and renamed. `file` defines its content.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from easyscale.checkpoint import file as checkpoint_file
from easyscale.checkpoint.file import Checkpoint
from easyscale.checkpoint.folder_lock import FolderLock
from easyscale.checkpoint.uncached_file import UncachedFile
from easyscale.errors import EasyScaleError

__all__ = ["Checkpoint", "Checkpoints"]

_NAME = re.compile(r"step-(\d+)-([0-9a-f]{32})\.npz")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.part")
_DAMAGED = re.compile(r"step-\d+-[0-9a-f]{32}\.damaged")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR)  # by `fsync` of folders, in some file systems
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: String or `Path`. It is created when the first checkpoint is written.
        keep: Int. The number of latest checkpoints to keep; fewer if there is no room. Defaults to `3`.

    Attributes:
        removed: Int. The number of files that were removed early to make room for the last checkpoint.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> path = Checkpoints(folder).write(150, Checkpoint({"epoch": 2}, {"weights": np.ones(3)}))
    >>> Checkpoints(folder).read()[0].about
    {'epoch': 2}
    """

    def __init__(self, folder: str | Path, keep: int = 3):
        self.folder, self._keep = Path(folder), keep
        self._lock = FolderLock(self.folder)
        self.removed = 0
        self._is_for_one = False  # whether this process locks the folder

    # Writing

    def prepare(self, patience: float = 0.0) -> None:
        """Create the folder, lock it for this process, and remove the temporary files of killed writers.

        Args:
            patience: Float. Seconds to wait for a process that has the lock, and may be about to end. Defaults to `0`.

        Raises:
            OSError: If the folder cannot be created or written to.
            EasyScaleError: If another process has the lock.
        """
        self._is_for_one = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.take(patience)
            with contextlib.suppress(OSError):
                for path in self.folder.iterdir():
                    if _TEMPORARY.fullmatch(path.name):
                        path.unlink()
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            if error.errno not in _NO_ROOM:  # for which `write` makes room, or raises
                raise

    def leave(self) -> None:
        """Release the folder to other processes."""
        self._is_for_one = False
        self._lock.release()

    def write(self, number: int, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and remove those that are too old; return its path.

        If the disk is full, older ones are removed, the oldest first, if that helps. The last undamaged one stays.

        Args:
            number: Int. The number of steps so far.
            checkpoint: `Checkpoint`.

        Raises:
            OSError: If it cannot be written. No partial file is left.
        """
        removed = 0
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                if self._is_for_one:
                    self._lock.take()  # there may have been no room for it before
                path = self._write(number, checkpoint)
                break
            except OSError as error:
                if error.errno not in _NO_ROOM or not self._make_room(checkpoint, error.errno):
                    raise
                removed += 1
        self.removed = removed
        for _, old in self._found()[self._keep :]:
            if old != path:
                with contextlib.suppress(OSError):
                    old.unlink()
        return path

    def _write(self, number: int, checkpoint: Checkpoint) -> Path:
        part = self.folder / f".{secrets.token_hex(16)}.part"
        try:
            with UncachedFile(part) as file:
                checksum = checkpoint_file.write(file, checkpoint)
                file.finish()
            path = self.folder / f"step-{number:09d}-{checksum}.npz"
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        _sync_folder(self.folder)
        return path

    def _make_room(self, checkpoint: Checkpoint, reason: int) -> bool:
        """Remove the most dispensable file, if that may help; return whether one was removed."""
        if not self.folder.exists():
            return False
        older = [path for _, path in reversed(self._found())]
        whole = next((path for path in reversed(older) if self._what_is_wrong(path) is None), None)
        spare = [path for path in self.folder.iterdir() if _DAMAGED.fullmatch(path.name)]
        spare += [path for path in older if path != whole]
        needed = sum(array.nbytes for array in checkpoint.arrays.values())
        room = os.statvfs(self.folder)
        free = room.f_bavail * room.f_frsize + sum(path.lstat().st_size for path in spare)
        if reason == errno.ENOSPC and free < needed:
            return False
        for path in spare:
            with contextlib.suppress(OSError):
                path.unlink()
                return True
        return False

    # Reading

    def read(
        self, load: Callable[[Path, str], Checkpoint] = checkpoint_file.read
    ) -> tuple[Checkpoint | None, dict[Path, str]]:
        """Return the last undamaged checkpoint, or `None`, and for each later one a description of its damage.

        Args:
            load: Function. Takes a path and a checksum, returns the checkpoint. Defaults to `file.read`, which reads
                all of it into memory; `file.open_whole` reads arrays when they are looked up.

        Raises:
            EasyScaleError: If the folder cannot be read, or there is too little memory.
        """
        wrong: dict[Path, str] = {}
        try:
            found = self._found()
        except OSError as error:
            raise EasyScaleError(
                f"a folder of checkpoints must be one that can be read. Received: '{self.folder}' ({error.strerror})"
            ) from None
        for _, path in found:
            try:
                return load(path, _checksum_of(path)), wrong
            except FileNotFoundError:  # the job that writes here has just removed it
                continue
            except MemoryError:
                raise EasyScaleError(
                    f"a checkpoint must have room in memory. Received: '{path}', {path.stat().st_size} bytes. Use a "
                    "machine with more memory"
                ) from None
            except Exception as error:  # a damaged file can fail in any way
                wrong[path] = f"'{path}' is damaged ({_in_words(error)})"
        return None, wrong

    def passed_over(self) -> dict[Path, str]:
        """Return the paths with a checkpoint's name that are not readable files, each with what it is instead."""
        with contextlib.suppress(OSError):
            named = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
            return {path: reason for path in sorted(named) if (reason := _what_it_is(path))}
        return {}

    def newest(self) -> int | None:
        """Return the number of the last checkpoint, or `None` if there is none."""
        with contextlib.suppress(OSError):
            return next((number for number, _ in self._found()), None)
        return None

    def set_aside(self, path: Path) -> None:
        """Rename a damaged checkpoint to `.damaged`, so that it is kept but not counted."""
        with contextlib.suppress(OSError):
            path.rename(path.with_suffix(".damaged"))

    def _what_is_wrong(self, path: Path) -> str | None:
        try:
            checkpoint_file.check(path, _checksum_of(path))
        except Exception as error:
            return _in_words(error)
        return None

    def _found(self) -> list[tuple[int, Path]]:
        """Return number and path of each checkpoint, the last one first."""
        try:
            paths = list(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for path in paths:
            if (match := _NAME.fullmatch(path.name)) and not _what_it_is(path):
                with contextlib.suppress(FileNotFoundError):
                    found.append((int(match[1]), path.stat().st_mtime_ns, path))
        return [(number, path) for number, _, path in sorted(found, reverse=True)]


def _checksum_of(path: Path) -> str:
    """Return the checksum in a checkpoint's name."""
    return path.stem.rpartition("-")[2]


def _what_it_is(path: Path) -> str | None:
    """Return a description of a path that is not a readable file; `None` if it is one, or is gone."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link to nowhere" if path.is_symlink() else None
    except OSError as error:  # a link to itself
        return _in_words(error)
    if not stat.S_ISREG(mode):
        return _KINDS.get(stat.S_IFMT(mode), "a device")
    return None if os.access(path, os.R_OK) else "a file that must not be read"


def _in_words(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(file)
