"""The file format of a checkpoint: an `.npz` of plain arrays, one of which is JSON. NumPy only.

Nothing in it is ever executed: neither writing nor reading uses pickle. And nothing that a file declares is trusted: no
array takes more memory than the file has bytes for it, and the JSON no more than a few hundred megabytes.
"""

import hashlib
import io
import json
import math
import os
import stat
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from easyscale.layout.specs import Spec

__all__ = ["Checkpoint", "StoredArrays", "check", "is_storable", "open_whole", "read", "write"]

_PIECE = 1 << 22  # bytes that are written, or read, at a time
_MOST_TEXT, _MOST_VALUES = 1 << 26, 1 << 22  # bytes of JSON, and values in it, which take up to 80 bytes each
_NUMBERS, _OTHERS = "biufc", "USmM"  # kinds of dtypes that can be stored without pickle


class Checkpoint(NamedTuple):
    """The content of a checkpoint: `about`, a dictionary of JSON values, and `arrays` by name."""

    about: dict
    arrays: Mapping[str, np.ndarray]


def write(stream: io.RawIOBase, checkpoint: Checkpoint) -> str:
    """Write a checkpoint; return its checksum.

    Values need not be arrays: one that has a `dtype` and that `np.asarray` accepts is converted when it is written.
    """
    dtypes = {name: value.dtype for name, value in checkpoint.arrays.items()}
    dtype_names = {name: dtype.name for name, dtype in dtypes.items() if not _is_plain(dtype)}
    text = json.dumps({"about": checkpoint.about, "kinds": dtype_names}).encode()
    _check_text(text)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, value in {"json": np.frombuffer(text, np.uint8), **checkpoint.arrays}.items():
            _write_array(archive, name, np.asarray(value, order="C"), is_plain=name not in dtype_names)
        return _checksum(archive)


def _write_array(archive: zipfile.ZipFile, name: str, array: np.ndarray, is_plain: bool) -> None:
    if not is_plain:
        array = array.view(np.dtype(f"u{array.itemsize}"))
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
        for start in range(0, array.nbytes, _PIECE):  # `write_array` would copy each piece
            member.write(array.reshape(-1).view(np.uint8)[start : start + _PIECE].data)


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of a checkpoint file, each of which is read into memory when it is looked up.

    Args:
        path: `Path`. The file stays open as long as this object exists.
        checksum: String. The file's checksum.

    Attributes:
        about: The checkpoint's `about`.

    Raises:
        Exception: If the file is damaged, or `write` has not written it; or `MemoryError`. A lookup raises the same.
    """

    def __init__(self, path: Path, checksum: str):
        file = _open(path)
        weakref.finalize(self, file.close)
        self._archive = zipfile.ZipFile(file)
        members = _members(self._archive, file, checksum)
        self._found = {member.filename.removesuffix(".npy"): member for member in members}
        self._dtypes: dict[str, np.dtype] = {}  # of arrays stored as integers, by the name in the archive
        if self._found["json"].file_size > _MOST_TEXT:
            raise ValueError(f"its JSON is longer than {_MOST_TEXT} bytes")
        text = self["json"].tobytes()
        _check_text(text)
        known = json.loads(text)
        del self._found["json"]
        self.about = known["about"]
        self._dtypes |= {self._found[name].filename: _dtype_named(kind) for name, kind in known["kinds"].items()}

    def __getitem__(self, name: str) -> np.ndarray:
        member = self._found[name]
        with self._archive.open(member) as stream:
            # typeshed declares `IO[bytes]` instead of `ZipExtFile`, and hides its `readinto`.
            array = _read_array(stream, member.file_size)  # type: ignore[arg-type]
        return array.view(self._dtypes.get(member.filename, array.dtype))

    def spec(self, name: str) -> Spec:
        """Return shape and dtype of an array, without reading it."""
        member = self._found[name]
        with self._archive.open(member) as stream:
            shape, dtype = _read_header(stream, member.file_size)  # type: ignore[arg-type]
        return Spec(shape, self._dtypes.get(member.filename, dtype))

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def read(path: Path, checksum: str) -> Checkpoint:
    """Return the checkpoint in a file. See `StoredArrays` for the exceptions."""
    stored = StoredArrays(path, checksum)
    return Checkpoint(stored.about, dict(stored))


def open_whole(path: Path, checksum: str) -> Checkpoint:
    """Return the checkpoint in a file, with `StoredArrays`, after reading it once to check that it is undamaged."""
    check(path, checksum)
    stored = StoredArrays(path, checksum)
    for name in stored:
        stored.spec(name)
    return Checkpoint(stored.about, stored)


def check(path: Path, checksum: str) -> None:
    """Raise an exception if a file is damaged. It is read, but not kept in memory."""
    with _open(path) as file, zipfile.ZipFile(file) as archive:
        _members(archive, file, checksum)
        if (name := archive.testzip()) is not None:
            raise ValueError(f"its part {name} has another checksum")


def is_storable(dtype: np.dtype) -> bool:
    """Return whether a checkpoint can hold arrays of this dtype. Some, such as bfloat16, are stored as integers."""
    return _is_plain(dtype) or (dtype.name in vars(ml_dtypes) and dtype.itemsize in (1, 2, 4, 8))


def _check_text(text: bytes) -> None:
    """Raise if JSON would take too much memory when parsed: a list of empty lists takes 20 times its text."""
    values = sum(map(text.count, (b",", b"[", b"{")))
    if len(text) > _MOST_TEXT or values > _MOST_VALUES:
        raise ValueError(
            f"its JSON must have {_MOST_TEXT} bytes and {_MOST_VALUES} values at most. Received: {len(text)} bytes and "
            f"{values} values. Keep less in attributes of callbacks"
        )


def _is_plain(dtype: np.dtype) -> bool:
    is_known = dtype.kind in _OTHERS or (dtype.kind in _NUMBERS and dtype.name in np.sctypeDict)
    return is_known and dtype.itemsize > 0


def _dtype_named(name: str) -> np.dtype:
    kind = vars(ml_dtypes).get(name)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise ValueError(f"an array is of an unknown type, {name!r:.50}")
    return np.dtype(kind)


def _checksum(archive: zipfile.ZipFile) -> str:
    """Return a digest of the archive's directory, with the CRC of each array, which is checked when it is read."""
    members = [[member.filename, member.file_size, member.CRC] for member in archive.infolist()]
    return hashlib.sha256(json.dumps(members).encode()).hexdigest()[:32]


def _open(path: Path) -> BinaryIO:
    """Open a path that must be a regular file, without blocking: opening a named pipe would wait for a writer."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError("it is not a file")
    return os.fdopen(file, "rb")


def _members(archive: zipfile.ZipFile, file: BinaryIO, checksum: str) -> list[zipfile.ZipInfo]:
    """Return the members of the archive; raise if `write` would not make them so, or they exceed the file."""
    if _checksum(archive) != checksum:
        raise ValueError("its checksum is another")
    members = archive.infolist()
    if len({member.filename for member in members}) < len(members):
        raise ValueError("two of its arrays have one name")
    if any(
        member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size for member in members
    ):
        raise ValueError("its arrays are compressed")
    if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
        raise ValueError("its arrays are larger than the file")
    return members


def _read_array(stream: io.BufferedIOBase, size: int) -> np.ndarray:
    """Return an array that has `size` bytes in the file, including its header."""
    shape, dtype = _read_header(stream, size)
    array = np.empty(shape, dtype)
    rest = array.reshape(-1).view(np.uint8)
    while rest.size:
        count = stream.readinto(rest[:_PIECE].data)
        if not count:
            raise ValueError("an array is cut off")
        rest = rest[count:]
    stream.read(1)  # at the end of the member the CRC is checked
    return array


def _read_header(stream: io.BufferedIOBase, size: int) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype from the header of an array. See `_read_array`."""
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array is in another format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
    if is_fortran or not _is_plain(dtype):
        raise ValueError(f"an array is of another kind, {dtype}")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise ValueError(f"an array has another size than its shape says, {shape!s:.50}")
    return shape, dtype
