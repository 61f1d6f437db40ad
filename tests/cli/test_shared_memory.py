"""Ranks that are killed leave nothing in /dev/shm behind, and one that is too small is told of in one line."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from launches import environment, run

from easyscale.cli.launch import shared_memory
from easyscale.errors import LaunchError

SHARED_MEMORY = Path("/dev/shm")

SCRIPT = """
import os, signal, sys
import easyscale
comm = easyscale.communicator.get()
if comm.rank == 0:
    print(os.environ.get("OMPI_MCA_btl_sm_backing_directory"), flush=True)
easyscale.exchange.get("shared_memory").allocate(1_000_000)
comm.barrier()
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
comm.barrier()
"""


@pytest.mark.skipif(not os.access(SHARED_MEMORY, os.W_OK), reason="there is no /dev/shm here")
def test_a_killed_rank_leaves_no_shared_memory(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run([sys.executable, "-m", "easyscale", "launch", "-n", "2", str(script)], timeout=60)
    assert done.returncode == 128 + 9, done.stderr
    folder = Path(done.stdout.splitlines()[0])
    assert folder.parent == SHARED_MEMORY and folder.name.startswith("easyscale-")
    assert not folder.exists()


LAUNCH = [sys.executable, "-m", "easyscale", "launch", "-n", "2"]
MAY_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
needs_mount = pytest.mark.skipif(not MAY_MOUNT, reason="needs root, and util-linux")


def run_with_room(size, command, **variables):
    """Run a command in a mount namespace with a /dev/shm of `size`."""
    line = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && exec {shlex.join(command)}"
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(["unshare", "--mount", "sh", "-c", line], env=environment(**variables), timeout=120, **pipes)


@needs_mount
@pytest.mark.parametrize("command", [[*LAUNCH, __file__], [*LAUNCH[:3], "bench", "exchange", "-n", "2"]])
def test_too_small_a_dev_shm_is_refused_before_the_start(command):
    done = run_with_room("64k", command)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"easyscale: /dev/shm of {os.uname().nodename} must have room for what MPI keeps there. Received: 66 KB free "
        "of 66 KB, for 2 processes that need 2.2 MB. Make it larger (`mount -o remount,size=8G /dev/shm`, `docker run "
        "--shm-size=8g`, an `emptyDir` of medium `Memory` in Kubernetes), or remove what others have left there"
    )


SEND = """
import sys
import numpy as np
import easyscale
comm = easyscale.communicator.get()
if comm.rank == 0:
    requests = [comm.isend(np.ones(50_000), 1) for _ in range(100)]  # 40 MB on their way at a time
    for request in requests: request.wait()
else:
    for _ in range(100): comm.receive(np.empty(50_000), 0)
"""


@needs_mount
def test_messages_of_a_job_stay_within_a_small_dev_shm(tmp_path):
    # Where processes may not read each other's memory, as in many containers, messages go through /dev/shm.
    script = tmp_path / "script.py"
    script.write_text(SEND)
    done = run_with_room("3m", [*LAUNCH, str(script)], OMPI_MCA_btl_sm_single_copy_mechanism="none")
    assert (done.returncode, done.stderr) == (0, "")


@needs_mount
def test_a_bus_error_names_a_dev_shm_that_is_full(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import mmap\nimport easyscale\ncomm = easyscale.communicator.get()\nif comm.rank == 1:\n"
        "    file = open('/dev/shm/full', 'wb+')\n    file.truncate(1 << 24)\n"
        "    mmap.mmap(file.fileno(), 1 << 24).write(bytes(1 << 24))\ncomm.barrier()"
    )
    done = run_with_room("4m", [*LAUNCH, str(script)])
    assert done.returncode == 128 + 7
    full, named = done.stderr.splitlines()[-2:]
    assert full.startswith(f"easyscale: /dev/shm of {os.uname().nodename} is full, ")
    assert " free of 4.2 MB. Make it larger (`mount -o remount,size=8G /dev/shm`" in full
    assert named == f"easyscale: rank 1 on {os.uname().nodename} was killed by signal 7 (Bus error)"


def test_what_is_advised_is_enough(monkeypatch):
    monkeypatch.setattr(shared_memory, "_room", lambda folder: (1 << 34, 1 << 34))
    with pytest.raises(LaunchError, match="100000 processes that need 26215.4 MB. Make it larger .*size=49G /dev/shm"):
        shared_memory.check(100_000)


def test_where_there_is_room_each_process_has_as_much_for_messages_as_ever(monkeypatch):
    free = 1 << 30
    monkeypatch.setattr(shared_memory, "_room", lambda folder: (free, free))
    assert shared_memory.segment(4) is None
    free = 64 << 20
    assert 4 * shared_memory.segment(4) <= free // 2
