"""One process at a time has a folder, and none has it for longer than it lives."""

import multiprocessing
import signal
import socket
import subprocess
import sys

import pytest

from easyscale.checkpoint.folder_lock import FolderLock
from easyscale.errors import EasyScaleError

HOLDER = """
import sys
from pathlib import Path
from easyscale.checkpoint.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.take()
print("has it", flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the folder until its stdin is closed."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "has it\n"
        yield process
        process.kill()


def test_who_has_it_is_named(tmp_path, holder):
    with pytest.raises(EasyScaleError, match=f"process {holder.pid} on {socket.gethostname()} has") as raised:
        FolderLock(tmp_path).take()
    assert "\n" not in str(raised.value)


def test_it_ends_with_its_process_also_if_that_is_killed(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    lock = FolderLock(tmp_path)
    lock.take(patience=30)
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_it_is_waited_for_while_it_is_given_back(tmp_path, holder):
    holder.stdin.close()
    FolderLock(tmp_path).take(patience=30)


def test_a_process_that_was_forked_does_not_have_it(tmp_path):
    lock = FolderLock(tmp_path)
    lock.take()
    forks = multiprocessing.get_context("fork")
    child = forks.Process(target=signal.pause)
    child.start()
    try:
        lock._forget()  # as if this process ended
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout.readline() == "has it\n"
            other.stdin.close()
    finally:
        child.kill()
        child.join()


def test_in_one_process_the_last_has_it(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.take()
    second.take()
    first.release()  # has no say any more
    assert (tmp_path / ".easyscale.lock").exists()
    second.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "\0" * 10, "a b c", "\x1b[31m 5", "host -1", "x" * 1000])
def test_what_the_file_says_is_not_believed(tmp_path, holder, text):
    (tmp_path / ".easyscale.lock").write_text(text)
    with pytest.raises(EasyScaleError, match="which another job has"):
        FolderLock(tmp_path).take()


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / ".easyscale.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        FolderLock(tmp_path).take()
    assert not (tmp_path / "elsewhere").exists()
