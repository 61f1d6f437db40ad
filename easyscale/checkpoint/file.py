"""One checkpoint as a file: an `.npz` of plain arrays, one of which is JSON. NumPy only.

Nothing in it is ever executed: there is no pickle, in writing or in reading. And nothing that it says of itself is
believed: no array takes more memory than the file has bytes for it.
"""

import hashlib
import io
import json
import math
import os
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

__all__ = ["Checkpoint", "check", "is_storable", "read", "write"]

_PIECE = 1 << 22  # bytes that are written, or read, at a time
_NUMBERS, _OTHERS = "biufc", "USmM"  # kinds of dtypes that a file can have without pickle


class Checkpoint(NamedTuple):
    """What a checkpoint holds: `about`, whatever JSON takes, and `arrays` by name."""

    about: dict
    arrays: dict[str, np.ndarray]


def write(stream: io.RawIOBase, checkpoint: Checkpoint) -> str:
    """Write a checkpoint; return its checksum."""
    arrays, dtype_names = {}, {}
    for name, value in checkpoint.arrays.items():
        array = np.asarray(value, order="C")
        if not _is_plain(array.dtype):
            dtype_names[name] = array.dtype.name
            array = array.view(np.dtype(f"u{array.itemsize}"))
        arrays[name] = array
    text = json.dumps({"about": checkpoint.about, "kinds": dtype_names}).encode()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in {"json": np.frombuffer(text, np.uint8), **arrays}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
                for start in range(0, array.nbytes, _PIECE):  # `write_array` would copy each piece
                    member.write(array.reshape(-1).view(np.uint8)[start : start + _PIECE].data)
        return _checksum(archive)


def read(path: Path, checksum: str) -> Checkpoint:
    """Return the checkpoint in a file.

    Raises:
        Exception: If it is not whole, or not what `write` has written; or `MemoryError`.
    """
    with _open(path) as file, zipfile.ZipFile(file) as archive:
        arrays = {}
        for member in _members(archive, file, checksum):
            with archive.open(member) as stream:
                # typeshed says `IO[bytes]` of what is a `ZipExtFile`, and hides its `readinto`.
                arrays[member.filename.removesuffix(".npy")] = _read_array(stream, member.file_size)  # type: ignore[arg-type]
    known = json.loads(arrays.pop("json").tobytes())
    for name, dtype_name in known["kinds"].items():
        arrays[name] = arrays[name].view(_dtype_named(dtype_name))
    return Checkpoint(known["about"], arrays)


def check(path: Path, checksum: str) -> None:
    """Raise an exception if a file is not whole. It is read, but takes no memory."""
    with _open(path) as file, zipfile.ZipFile(file) as archive:
        _members(archive, file, checksum)
        if (name := archive.testzip()) is not None:
            raise ValueError(f"its part {name} has another checksum")


def is_storable(dtype: np.dtype) -> bool:
    """Whether arrays of this type can be in a checkpoint: those that are not plain, such as bfloat16, are as bytes."""
    return _is_plain(dtype) or (dtype.name in vars(ml_dtypes) and dtype.itemsize in (1, 2, 4, 8))


def _is_plain(dtype: np.dtype) -> bool:
    is_known = dtype.kind in _OTHERS or (dtype.kind in _NUMBERS and dtype.name in np.sctypeDict)
    return is_known and dtype.itemsize > 0


def _dtype_named(name: str) -> np.dtype:
    kind = vars(ml_dtypes).get(name)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise ValueError(f"an array is of an unknown type, {name!r:.50}")
    return np.dtype(kind)


def _checksum(archive: zipfile.ZipFile) -> str:
    """A digest of what the archive says of its arrays: the CRC of each is among it, and checked when it is read."""
    members = [[member.filename, member.file_size, member.CRC] for member in archive.infolist()]
    return hashlib.sha256(json.dumps(members).encode()).hexdigest()[:32]


def _open(path: Path) -> BinaryIO:
    """Open what must be a file: to open a named pipe, for example, would wait for somebody who writes to it."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError("it is not a file")
    return os.fdopen(file, "rb")


def _members(archive: zipfile.ZipFile, file: BinaryIO, checksum: str) -> list[zipfile.ZipInfo]:
    """Return what the archive consists of, if that is what `write` makes, and not more than there is."""
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
    """Return an array of which there are `size` bytes, with what stands before it."""
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array is in another format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
    if is_fortran or not _is_plain(dtype):
        raise ValueError(f"an array is of another kind, {dtype}")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise ValueError(f"an array has another size than its shape says, {shape!s:.50}")
    array = np.empty(shape, dtype)
    rest = array.reshape(-1).view(np.uint8)
    while rest.size:
        count = stream.readinto(rest[:_PIECE].data)
        if not count:
            raise ValueError("an array is cut off")
        rest = rest[count:]
    stream.read(1)  # at the end the CRC is checked
    return array
