"""Checkpoints are whole or not there, and are what was written."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from checkpoint.folders import ARRAYS, truncate, write

from easyscale.checkpoint import folder as checkpoint_folder
from easyscale.checkpoint.folder import Checkpoints
from easyscale.errors import EasyScaleError


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
