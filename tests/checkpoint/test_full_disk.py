"""On a full disk older checkpoints make room, and the last that is whole stays."""

import errno
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from checkpoint.folders import steps_in, truncate, write

from easyscale.checkpoint import folder as checkpoint_folder
from easyscale.checkpoint.folder import Checkpoint, Checkpoints

BIG = {"weight": np.zeros(10**5)}


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
    names = [path.name for path in (folder / "run").iterdir() if path.name != ".easyscale.lock"]
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
def test_on_a_disk_that_is_really_full(tmp_path):
    mount = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, ON_A_SMALL_DISK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
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


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("lacks", ["the folder", "the lock"])
def test_a_disk_without_room_for_another_file_is_as_good_as_a_full_one(tmp_path, monkeypatch, lacks, reason):
    folder = Checkpoints(tmp_path / "run")
    where = (checkpoint_folder.Path, "mkdir") if lacks == "the folder" else (checkpoint_folder.FolderLock, "_try")

    def refuse(*_, **__):
        raise OSError(reason, os.strerror(reason))

    with monkeypatch.context() as full:
        full.setattr(*where, refuse)
        folder.prepare()
        with pytest.raises(OSError, match=os.strerror(reason)):
            folder.write(1, Checkpoint({}, {"weight": np.zeros(10)}))
    folder.write(2, Checkpoint({}, {"weight": np.zeros(10)}))
    assert steps_in(tmp_path / "run") == [2]
    assert (tmp_path / "run" / ".easyscale.lock").exists(), "the folder is for this process"
    folder.leave()
    assert not (tmp_path / "run" / ".easyscale.lock").exists()


def test_old_checkpoints_make_room_for_a_file_where_there_are_bytes_but_no_more_files(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        write(tmp_path, step)
    make = checkpoint_folder.FolderLock._try

    def try_lock(lock):
        if len(list(tmp_path.iterdir())) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(lock)

    monkeypatch.setattr(checkpoint_folder.FolderLock, "_try", try_lock)
    folder = Checkpoints(tmp_path)
    folder.prepare()
    folder.write(4, Checkpoint({}, {"weight": np.zeros(10)}))
    assert steps_in(tmp_path) == [2, 3, 4]
    folder.leave()
