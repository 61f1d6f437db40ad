"""Has mpirun listen to this host alone, where all ranks are on it.

mpirun listens on all networks for parts of its own on other hosts, whatever it is told. If there are no other hosts,
that is an open door for nothing. So its sockets are bound anew while it is stopped, on the same ports.
"""

import contextlib
import ctypes
import os
import signal
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

__all__ = ["listen_here_only"]

_PATIENCE = 1.0  # seconds that a process may take to stop
_PIDFD_GETFD = 438  # the number of this system call, the same on all processors
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def listen_here_only(pid: int) -> None:
    """Bind the sockets on which a process and its descendants listen to the loopback interface.

    Where the system does not allow that, as in some containers, they stay as they are.
    """
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            with contextlib.ExitStack() as stack:
                _bind_anew(member.pid, [stack.enter_context(found) for found in _open_to_all(member)])


def _open_to_all(process: "psutil.Process") -> list[socket.socket]:
    """Return the sockets of a `psutil.Process` that listen on more than the loopback interface."""
    found = []
    for connection in process.net_connections("tcp"):
        if (
            connection.status == "LISTEN"
            and connection.laddr.ip not in _LOOPBACK.values()
            and _has_loopback(connection.family)
        ):
            found.append(_take(process.pid, connection.fd))
    return found


def _has_loopback(family: socket.AddressFamily) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.bind((_LOOPBACK[family], 0))
    except OSError:
        return False
    return True


def _take(pid: int, file: int) -> socket.socket:
    """Return the socket that is this file of another process."""
    libc, process = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    try:
        taken = libc.syscall(_PIDFD_GETFD, process, file, 0)
    finally:
        os.close(process)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "may not take a file of this process")
    return socket.socket(fileno=taken)


def _bind_anew(pid: int, sockets: list[socket.socket]) -> None:
    if not sockets:
        return
    os.kill(pid, signal.SIGSTOP)  # else it would see that its socket is closed for a moment
    try:
        if _is_stopped(pid):
            for listener in sockets:
                port = listener.getsockname()[1]
                listener.shutdown(socket.SHUT_RDWR)
                listener.bind((_LOOPBACK[socket.AddressFamily(listener.family)], port))
                listener.listen(socket.SOMAXCONN)
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                return True
        time.sleep(0.001)
    return False
