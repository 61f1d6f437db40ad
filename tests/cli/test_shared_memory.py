"""Ranks that are killed leave nothing behind."""

import os
import sys
from pathlib import Path

import pytest
from launches import run

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
