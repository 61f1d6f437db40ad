"""Checkpoints as files: written at once or not at all, and never taken for whole when they are not. NumPy only.

A checkpoint is one `.npz` of plain arrays, one of which is JSON. It has its number and its checksum in its name:

    step-000000150-3f0c9a...e1.npz

It is written under another name that nobody can guess, reaches the disk, and is renamed. Nothing in it is ever
executed: there is no pickle, in writing or in reading.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from easyscale.uncached_file import UncachedFile

__all__ = ["Checkpoint", "Checkpoints", "is_storable"]

_NAME = re.compile(r"step-(\d+)-([0-9a-f]{32})\.npz")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.part")
_PIECE = 1 << 22  # bytes that are written at a time
_NUMBERS, _OTHERS = "biufc", "USmM"  # kinds of dtypes that a file can have without pickle


class Checkpoint(NamedTuple):
    """What a checkpoint holds: `about`, whatever JSON takes, and `arrays` by name."""

    about: dict
    arrays: dict[str, np.ndarray]


class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: String or `Path`. It is made when the first is written.
        keep: Int. How many stay, the last ones. Defaults to `3`.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> path = Checkpoints(folder).write(150, Checkpoint({"epoch": 2}, {"weights": np.ones(3)}))
    >>> Checkpoints(folder).read()[0].about
    {'epoch': 2}
    """

    def __init__(self, folder: str | Path, keep: int = 3):
        self.folder, self._keep = Path(folder), keep

    def write(self, number: int, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, and remove those that are too old; return its path.

        Args:
            number: Int. The steps so far.
            checkpoint: `Checkpoint`.

        Raises:
            OSError: If it cannot be written. Nothing of it is left then, and those before it stay.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{secrets.token_hex(16)}.part"
        file = UncachedFile(part)
        try:
            with file:
                checksum = _write(file, checkpoint)
                file.finish()
            path = self.folder / f"step-{number:09d}-{checksum}.npz"
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        _sync_folder(self.folder)
        for _, old in self._found()[self._keep :]:
            if old != path:
                with contextlib.suppress(OSError):
                    old.unlink()
        return path

    def read(self) -> tuple[Checkpoint | None, dict[Path, str]]:
        """Return the last checkpoint that is whole, or `None`, and of each after it what is wrong with it, in words."""
        wrong = {}
        for _, path in self._found():
            try:
                return _read(path), wrong
            except Exception as error:  # what is damaged can fail in any way
                wrong[path] = f"'{path}' is damaged ({' '.join(str(error).split())})"
        return None, wrong

    def set_aside(self, path: Path) -> None:
        """Keep a checkpoint that is damaged, but not as one of those that stay: its name ends in `.damaged` then."""
        with contextlib.suppress(OSError):
            path.rename(path.with_suffix(".damaged"))

    def prepare(self) -> None:
        """Make the folder, and remove what writers that were killed have left behind. Nobody else writes here now.

        Raises:
            OSError: If it cannot be made, or not be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder):
            pass
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink()

    def _found(self) -> list[tuple[int, Path]]:
        """Number and path of each checkpoint, the last one first."""
        try:
            paths = list(self.folder.iterdir())
        except OSError:
            return []
        found = [(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]
        return sorted(found, key=lambda one: (one[0], one[1].stat().st_mtime_ns), reverse=True)


def _write(stream: io.RawIOBase, checkpoint: Checkpoint) -> str:
    """Write a checkpoint; return its checksum."""
    arrays, kinds = {}, {}
    for name, value in checkpoint.arrays.items():
        array = np.asarray(value, order="C")
        if not _is_plain(array.dtype):
            kinds[name] = array.dtype.name
            array = array.view(np.dtype(f"u{array.itemsize}"))
        arrays[name] = array
    text = json.dumps({"about": checkpoint.about, "kinds": kinds}).encode()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in {"json": np.frombuffer(text, np.uint8), **arrays}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
                for start in range(0, array.nbytes, _PIECE):  # `write_array` would copy each piece
                    member.write(array.reshape(-1).view(np.uint8)[start : start + _PIECE])
        return _checksum(archive)


def _is_plain(dtype: np.dtype) -> bool:
    return dtype.kind in _OTHERS or (dtype.kind in _NUMBERS and dtype.name in np.sctypeDict)


def is_storable(dtype: np.dtype) -> bool:
    """Whether arrays of this type can be in a checkpoint: those that are not plain, such as bfloat16, are as bytes."""
    return _is_plain(dtype) or (dtype.name in vars(ml_dtypes) and dtype.itemsize in (1, 2, 4, 8))


def _checksum(archive: zipfile.ZipFile) -> str:
    """A digest of what the archive says of its arrays: the CRC of each is among it, and checked when it is read."""
    members = [[one.filename, one.file_size, one.CRC] for one in archive.infolist()]
    return hashlib.sha256(json.dumps(members).encode()).hexdigest()[:32]


def _read(path: Path) -> Checkpoint:
    with zipfile.ZipFile(path) as archive:
        if _checksum(archive) != _NAME.fullmatch(path.name)[2]:
            raise ValueError("its checksum is another")
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    known = json.loads(arrays.pop("json").tobytes())
    for name, kind in known["kinds"].items():
        arrays[name] = arrays[name].view(np.dtype(getattr(ml_dtypes, kind, kind)))
    return Checkpoint(known["about"], arrays)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
