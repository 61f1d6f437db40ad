"""Checkpoints are whole or not there, are what was written, and execute nothing."""

import errno
import hashlib
import json
import os
import pickle
import re
import resource
import socket
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from easyscale.checkpoint import folder as checkpoint_folder
from easyscale.checkpoint.folder import Checkpoint, Checkpoints
from easyscale.errors import EasyScaleError

ARRAYS = {
    "weight/0": np.arange(12, dtype="float32").reshape(3, 4),
    "weight/1": np.array(3, "int64"),
    "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "empty": np.zeros((0, 2)),
    "flags": np.array([True, False]),
}


def write(folder, *steps, keep=3):
    return [Checkpoints(folder, keep).write(step, Checkpoint({"step": step}, ARRAYS)) for step in steps]


def test_what_is_read_is_what_was_written(tmp_path):
    write(tmp_path / "made" / "when needed", 7)
    (about, arrays), wrong = Checkpoints(tmp_path / "made" / "when needed").read()
    assert (about, wrong) == ({"step": 7}, {})
    assert list(arrays) == list(ARRAYS)
    for name, value in ARRAYS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(arrays[name], value)


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_a_folder_without_checkpoints_has_none(tmp_path, folder):
    assert Checkpoints(tmp_path / folder).read() == (None, {})


def test_the_last_ones_stay_and_the_last_is_read(tmp_path):
    write(tmp_path, 5, 10, 100, 1000, keep=2)
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.iterdir()) == [100, 1000]
    assert Checkpoints(tmp_path).read()[0].about == {"step": 1000}


def truncate(data):
    return data[: len(data) // 2]


def flip_a_bit(data):
    index = data.index(ARRAYS["weight/0"].tobytes()) + 5
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, lambda data: b""])
def test_of_a_damaged_checkpoint_the_one_before_is_taken_and_that_is_said(tmp_path, damage):
    _, last = write(tmp_path, 5, 10)
    last.write_bytes(damage(last.read_bytes()))
    found, wrong = Checkpoints(tmp_path).read()
    assert found.about == {"step": 5}
    assert list(wrong) == [last] and wrong[last].startswith(f"'{last}' is damaged (")


def test_damaged_ones_that_are_set_aside_do_not_count_among_those_that_stay(tmp_path):
    for path in write(tmp_path, 70, 75, 80):
        path.write_bytes(b"")
    checkpoints = Checkpoints(tmp_path)
    found, wrong = checkpoints.read()
    assert found is None
    for path in wrong:
        checkpoints.set_aside(path)
    write(tmp_path, 5, 10, 15, 20)
    assert sorted(int(path.name[5:14]) for path in tmp_path.glob("*.npz")) == [10, 15, 20]
    assert sorted(int(path.name[5:14]) for path in tmp_path.glob("*.damaged")) == [70, 75, 80]


def test_a_bit_that_is_another_is_found_unless_it_stands_for_nothing(tmp_path):
    (path,) = write(tmp_path, 5)
    data, found = path.read_bytes(), []
    for index in range(0, len(data), 7):
        path.write_bytes(data[:index] + bytes([data[index] ^ 16]) + data[index + 1 :])
        checkpoint, _ = Checkpoints(tmp_path).read()
        found.append(checkpoint is None)
        if checkpoint is not None:  # a date, for example
            assert checkpoint.about == {"step": 5}
            for name, value in ARRAYS.items():
                np.testing.assert_array_equal(checkpoint.arrays[name], value)
    assert sum(found) > 20


def test_a_full_disk_leaves_nothing_and_harms_no_other(tmp_path):
    write(tmp_path, 5)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Checkpoints(tmp_path).write(10, Checkpoint({}, {"weight": np.zeros(10**6)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == ["000000005"]


def steps_in(folder):
    return sorted(int(path.name[5:14]) for path in folder.glob("*.npz"))


BIG = {"weight": np.zeros(10**5)}


class Disk:
    """A disk with room for so many bytes in a folder, as `Checkpoints` sees it."""

    def __init__(self, folder, size, monkeypatch):
        self.folder, self.size = folder, size
        finish = checkpoint_folder.UncachedFile.finish

        def finish_if_there_is_room(file):
            finish(file)
            if self.free() < 0:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(checkpoint_folder.UncachedFile, "finish", finish_if_there_is_room)
        monkeypatch.setattr(
            os, "statvfs", lambda path: os.statvfs_result((1, 1, 0, 0, max(self.free(), 0), 0, 0, 0, 0, 255))
        )

    def free(self):
        return self.size - sum(path.stat().st_size for path in self.folder.iterdir())


def test_on_a_full_disk_older_ones_make_room_and_the_last_that_is_whole_stays(tmp_path, monkeypatch):
    size = Checkpoints(tmp_path).write(5, Checkpoint({}, BIG)).stat().st_size
    disk = Disk(tmp_path, int(3.5 * size), monkeypatch)
    store = Checkpoints(tmp_path)

    def take(step):
        store.write(step, Checkpoint({"step": step}, BIG))
        return steps_in(tmp_path), store.removed

    assert take(10) == ([5, 10], 0)
    assert take(15) == ([5, 10, 15], 0)
    assert take(20) == ([10, 15, 20], 1)
    store.set_aside(next(tmp_path.glob("*-000000015-*")))
    assert take(25) == ([10, 20, 25], 1)  # what is damaged goes first
    for path in tmp_path.glob("*-00000002?-*"):
        path.write_bytes(truncate(path.read_bytes()))
    disk.size = int(2.2 * size)
    assert take(30) == ([10, 30], 2)  # two were damaged
    disk.size = int(1.5 * size)
    with pytest.raises(OSError, match="No space left"):
        take(35)
    disk.size = size // 2  # nothing that could be removed would make room
    with pytest.raises(OSError, match="No space left"):
        take(40)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"] and steps_in(tmp_path) == [30]
    disk.size = 9 * size
    assert take(45) == ([30, 45], 0)


ON_A_SMALL_DISK = """
import errno, os, sys
from pathlib import Path
import numpy as np
from easyscale.checkpoint.folder import Checkpoint, Checkpoints

folder = Path(sys.argv[1])
store = Checkpoints(folder / "run")
store.prepare()
def write(step):
    try:
        store.write(step, Checkpoint({"step": step}, {"weight": np.full(1 << 18, step, "uint8")}))
    except OSError as error:
        assert error.errno == errno.ENOSPC
        print("no room", end=" ")
    names = [one.name for one in (folder / "run").iterdir() if one.name != ".easyscale.lock"]
    print(sorted(int(name[5:14]) for name in names), Checkpoints(folder / "run").read()[0].about["step"])
for step in range(5, 30, 5):
    write(step)
for name in ("15", "20"):
    next((folder / "run").glob(f"step-0000000{name}-*")).unlink()
(folder / "other").write_bytes(bytes(448 << 10))
write(30)
write(35)
next((folder / "run").glob("step-000000030-*")).unlink()
(folder / "another").write_bytes(bytes(250 << 10))
write(40)
(folder / "other").unlink()
write(45)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.timeout(100)
def test_on_a_disk_that_is_really_full(tmp_path):
    mount = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, ON_A_SMALL_DISK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("[5] 5", "[5, 10] 10", "[5, 10, 15] 15", "[10, 15, 20] 20", "[15, 20, 25] 25"),
        *("[25, 30] 30", "[30, 35] 35", "no room [35] 35", "[35, 45] 45"),
    ]


def test_where_the_whole_disk_is_needed_nothing_else_is_removed(tmp_path, monkeypatch):
    write(tmp_path, 5, 10)
    Disk(tmp_path, 100, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        Checkpoints(tmp_path).write(15, Checkpoint({}, BIG))
    assert steps_in(tmp_path) == [5, 10]


ODD = {
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "Too many levels of symbolic links": lambda path: path.symlink_to(path.name),
    "a named pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "a device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_only_named_like_a_checkpoint_is_passed_over_and_told_of(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path(f"step-000000099-{'0' * 32}.npz")
    ODD[kind](path)
    folder = Path(".")
    assert Checkpoints(folder).read() == (None, {})
    assert Checkpoints(folder).passed_over() == {path: kind}
    write(folder, 5, 10, keep=2)
    write(folder, 15, keep=2)
    assert Checkpoints(folder).read()[0].about == {"step": 15}
    assert len(list(folder.glob("*.npz"))) == 3 and path in folder.glob("*.npz")


def test_a_link_to_a_checkpoint_is_one(tmp_path):
    (path,) = write(tmp_path / "there", 5)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / path.name).symlink_to(path)
    assert Checkpoints(tmp_path / "here").read()[0].about == {"step": 5}


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(EasyScaleError, match="must be one that can be read. Received: .* \\(Permission denied\\)"):
        Checkpoints(tmp_path).read()


def test_too_little_memory_is_no_damage(tmp_path, monkeypatch):
    write(tmp_path, 5)

    def refuse(*arguments):
        raise MemoryError

    monkeypatch.setattr(checkpoint_folder.checkpoint_file, "_read_array", refuse)
    with pytest.raises(EasyScaleError, match="must have room in memory"):
        Checkpoints(tmp_path).read()


def forge(folder, header, data=b"", compress=zipfile.ZIP_STORED, names=("json.npy",)):
    """Write a file with the right checksum, whose arrays have this header."""
    path = folder / "forged"
    with zipfile.ZipFile(path, "w", compress) as archive:
        for name in names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of names that are there twice
                member = archive.open(name, "w")
            with member:
                np.lib.format.write_array_header_1_0(member, header)
                member.write(data)
    with zipfile.ZipFile(path) as archive:
        members = [[member.filename, member.file_size, member.CRC] for member in archive.infolist()]
    digest = hashlib.sha256(json.dumps(members).encode()).hexdigest()[:32]
    path.rename(folder / f"step-000000009-{digest}.npz")


def header(shape, descr="|u1", fortran_order=False):
    return {"descr": descr, "fortran_order": fortran_order, "shape": shape}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"header": header((1 << 50,))}, "another size than its shape says"),
        ({"header": header((1 << 40, 1 << 40), "<f8")}, "another size than its shape says"),
        ({"header": header((-2, -3)), "data": bytes(6)}, "another size than its shape says"),
        ({"header": header((1 << 60,), "<U0")}, "of another kind"),
        ({"header": header((2, 2), "<f4", True), "data": bytes(16)}, "of another kind"),
        ({"header": header((1,), [("a", "<f4")]), "data": bytes(4)}, "of another kind"),
        ({"header": header((1 << 25,)), "data": bytes(1 << 25), "compress": zipfile.ZIP_DEFLATED}, "are compressed"),
        ({"header": header((2,)), "data": bytes(2), "names": ["a.npy", "a.npy"]}, "two of its arrays have one name"),
    ],
)
def test_sizes_are_checked_before_memory_is_taken(tmp_path, made, message, monkeypatch):
    forge(tmp_path, **made)
    monkeypatch.setattr(np, "empty", lambda *arguments: pytest.fail("memory was taken"))
    found, wrong = Checkpoints(tmp_path).read()
    assert found is None
    (said,) = wrong.values()
    assert message in said and "\n" not in said


def test_what_a_killed_writer_has_left_is_removed_and_nothing_else(tmp_path):
    (path,) = write(tmp_path, 5)
    (tmp_path / f".{'0' * 32}.part").write_text("half")
    (tmp_path / "notes.part").write_text("the user's")
    Checkpoints(tmp_path).prepare()
    assert sorted(left.name for left in tmp_path.iterdir() if left.name != ".easyscale.lock") == [
        "notes.part",
        path.name,
    ]


def test_a_folder_that_cannot_be_written_is_found_at_the_begin(tmp_path):
    Checkpoints(tmp_path / "new" / "folder").prepare()
    assert (tmp_path / "new" / "folder").is_dir()
    with pytest.raises(OSError):
        Checkpoints("/proc/none").prepare()


def test_it_reaches_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *arguments, name=name, original=original: (calls.append(name), original(*arguments))[1]
        )
    write(tmp_path, 5)
    assert calls == ["fsync", "replace", "fsync"]  # the file, its name, the folder


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_users_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        (path,) = write(tmp_path, 5)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_temporary_names_cannot_be_guessed_and_are_not_followed(tmp_path, monkeypatch):
    opened = []

    def note(path, flags, mode=0o777, *, original=os.open, **rest):
        opened.append((os.path.basename(path), flags))
        return original(path, flags, mode, **rest)

    monkeypatch.setattr(os, "open", note)
    write(tmp_path, 5, 6)
    names = [(name, flags) for name, flags in opened if name.endswith(".part")]
    assert len({name for name, _ in names}) == 2
    for name, flags in names:
        assert re.fullmatch(r"\.[0-9a-f]{32}\.part", name)
        assert flags & os.O_EXCL and flags & os.O_NOFOLLOW


class Evil:
    def __reduce__(self):
        return os.system, ("exit 1",)


def test_a_checkpoint_is_never_unpickled(tmp_path, monkeypatch):
    """Also if it was made by somebody who can give it the right checksum."""
    (path,) = write(tmp_path, 5)
    with zipfile.ZipFile(path, "a") as archive, archive.open("evil.npy", "w") as member:
        np.lib.format.write_array(member, np.array([Evil()], object), allow_pickle=True)
    with zipfile.ZipFile(path) as archive:
        members = [[member.filename, member.file_size, member.CRC] for member in archive.infolist()]
    digest = hashlib.sha256(json.dumps(members).encode()).hexdigest()[:32]
    path.rename(tmp_path / f"step-000000005-{digest}.npz")
    monkeypatch.setattr(pickle, "load", lambda *arguments, **options: pytest.fail("unpickled"))
    found, wrong = Checkpoints(tmp_path).read()
    assert found is None
    assert "Object arrays cannot be loaded when allow_pickle=False" in wrong.popitem()[1]


def test_an_array_of_objects_is_not_written(tmp_path):
    with pytest.raises((TypeError, ValueError)):
        Checkpoints(tmp_path).write(5, Checkpoint({}, {"evil": np.array([Evil()], object)}))
    assert list(tmp_path.iterdir()) == []
