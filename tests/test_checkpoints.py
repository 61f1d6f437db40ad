"""Checkpoints are whole or not there, are what was written, and execute nothing."""

import hashlib
import json
import os
import pickle
import re
import resource
import zipfile

import ml_dtypes
import numpy as np
import pytest

from easyscale.checkpoints import Checkpoint, Checkpoints

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
    assert sorted(int(one.name.split("-")[1]) for one in tmp_path.iterdir()) == [100, 1000]
    assert Checkpoints(tmp_path).read()[0].about == {"step": 1000}


def truncate(data):
    return data[: len(data) // 2]


def flip_a_bit(data):
    place = data.index(ARRAYS["weight/0"].tobytes()) + 5
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


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
    assert sorted(int(one.name[5:14]) for one in tmp_path.glob("*.npz")) == [10, 15, 20]
    assert sorted(int(one.name[5:14]) for one in tmp_path.glob("*.damaged")) == [70, 75, 80]


def test_a_bit_that_is_another_is_found_unless_it_stands_for_nothing(tmp_path):
    (path,) = write(tmp_path, 5)
    data, found = path.read_bytes(), []
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
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
    assert [one.name.split("-")[1] for one in tmp_path.iterdir()] == ["000000005"]


def test_what_a_killed_writer_has_left_is_removed_and_nothing_else(tmp_path):
    (path,) = write(tmp_path, 5)
    (tmp_path / f".{'0' * 32}.part").write_text("half")
    (tmp_path / "notes.part").write_text("the user's")
    Checkpoints(tmp_path).prepare()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["notes.part", path.name]


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
        members = [[one.filename, one.file_size, one.CRC] for one in archive.infolist()]
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
