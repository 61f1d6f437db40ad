"""Another user of a host gets nothing from the ports of a job that runs there, whichever MPI has started it.

The other user is a number without an account, as which a child of this process tries: so there is nothing to clean up.
"""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import mpis
import psutil
import pytest
from launches import environment

USER = 54321
PYTHONS = {"openmpi": sys.executable, **{name: mpis.python(name) for name in mpis.NAMES}}
SCRIPT = """
import os, sys, time, easyscale
easyscale.communicator.get().barrier()
print("up", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
easyscale.communicator.get().barrier()
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user"),
]


def as_tool(user: int) -> bytes:
    """What a tool sends to a PMIx server that it wants to be let in by, as one of this user."""

    def text(value: str) -> bytes:
        return value.encode() + b"\0"

    credential = struct.pack("=II", user, user)
    said = b"\x1cpmix.srvr.uri\0\0\x03\x0aabcd\0\x14pmix.ppid\0\0\x05\x0e\x02\x14pmix.euid\0\0\x0e\0"
    said += b"\x1cpmix.cmd.line\0\0\x03\x0aabcd\0"
    body = text("native") + struct.pack("!I", len(credential)) + credential + b"\x03" + struct.pack("!II", user, user)
    body += text("5.0.11") + text("v41") + b"\x01" + text("hash") + b"\x02\x04\x08" + said
    return struct.pack("=iIII", -1, 0xFFFFFFFF, len(body), 0) + body


def as_proxy() -> bytes:
    """What a host's process sends to MPICH's mpiexec, to be told the programs to start and their variables."""
    return b"HYD\0" + struct.pack("=ii", 0, 0)


def answers_to_another_user(addresses: list, message: bytes) -> list:
    """Return those of the addresses that answer when another user sends a message."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            for number, (family, address) in enumerate(addresses):
                with contextlib.suppress(OSError), socket.socket(family) as tried:
                    tried.settimeout(1.0)
                    tried.connect(address)
                    tried.sendall(message)
                    if tried.recv(4):
                        os.write(writer, bytes([number]))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        found = file.read()
    os.waitpid(pid, 0)
    return [addresses[number] for number in found]


def listening(pid: int) -> list:
    """Return the families and addresses on which a process and those below it listen."""
    parent = psutil.Process(pid)
    found = {
        (each.family, (each.laddr.ip, each.laddr.port))
        for process in [parent, *parent.children(recursive=True)]
        for each in process.net_connections("tcp")
        if each.status == "LISTEN"
    }
    return sorted(found)


def test_open_mpi_by_itself_lets_in_whoever_says_that_he_is_its_user():
    mpirun = shutil.which("mpirun", path=os.path.dirname(sys.executable))
    command = [mpirun, "--allow-run-as-root", "-n", "1", "sleep", "30"]
    with subprocess.Popen(command, env=environment(), start_new_session=True) as process:
        try:
            end = time.monotonic() + 120
            while not (found := listening(process.pid)) and time.monotonic() < end:
                time.sleep(0.1)
            time.sleep(0.5)
            local = [(family, address) for family, address in found if address[0] == "127.0.0.1"]
            assert len(answers_to_another_user(local, as_tool(0))) == 1
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.parametrize("restarts", [[], ["--restarts", "1"]], ids=["two ranks", "one rank"])
@pytest.mark.parametrize("mpi", PYTHONS)
def test_a_job_answers_to_nobody_else(mpi, restarts, tmp_path):
    script, over = tmp_path / "train.py", tmp_path / "over"
    script.write_text(SCRIPT)
    ranks = "1" if restarts else "2"
    command = [PYTHONS[mpi], "-m", "easyscale", "launch", "-n", ranks, *restarts, str(script), str(over)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout.readline().endswith("up\n")
            found = listening(process.pid)
            assert mpi != "openmpi" or len(found) >= 2, "mpirun and its gate"
            assert {address[0] for _, address in found} <= {"127.0.0.1", "::1"}
            assert answers_to_another_user(found, as_tool(os.getuid())) == []
            assert answers_to_another_user(found, as_proxy()) == []
        finally:
            over.touch()
        assert process.wait(120) == 0
