"""Keeps other users of this host away from mpirun when all ranks are on this host.

mpirun listens on TCP for its ranks and for its daemons on other hosts. It trusts the user that a client claims to be,
and starts programs for every client that it admits. Its listening sockets are therefore moved behind a gate as soon
as they appear:

    rank --> gate, on the port that mpirun has told its ranks --> mpirun, on a port that answers only the gate
             asks the kernel which user owns the other end

The gate is part of the launcher. A socket that listens on all networks serves other hosts. There are none, so its gate
is closed when the first rank has started.
"""

import contextlib
import ctypes
import errno
import os
import selectors
import signal
import socket
import struct
import time
from typing import NamedTuple

from easyscale.errors import LaunchError

__all__ = ["PIPE", "REPORT", "Loopback"]

PIPE = "easyscale-before-answering"  # name of the pipe where mpirun waits until its port is behind a gate
REPORT = "PMIX_MCA_ptl_base_report_uri"  # the variable that makes it do so
_LONGEST_HOLD = 10.0  # seconds that mpirun may wait there

_HOST = "127.0.0.1"
_PATIENCE = 1.0  # seconds that a process may take to stop
_MOST_PORTS = 100  # that a socket answers at a time; the length of a filter is limited
_PIDFD_GETFD = 438  # the number of this system call, the same on all architectures
_SO_ATTACH_FILTER = 26
_ESTABLISHED = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Loopback:
    """The listening sockets of mpirun, and the gates in front of them.

    Does nothing where the system does not let a process take another's socket, as in some containers.

    Args:
        selector: Selector. The gates' sockets are registered with it; their data are functions of a file descriptor.
        pid: Int. The process of mpirun.
        pipe: String. The named pipe where it waits before it answers. Defaults to `None`: it does not wait.
    """

    def __init__(self, selector: selectors.BaseSelector, pid: int, pipe: str | None = None):
        self._selector, self._pid, self._pipe = selector, pid, pipe
        self._pipe_end: int | None = None
        self._begun_at = time.monotonic()
        self._sockets: dict[str, socket.socket] = {}  # name in /proc -> socket of mpirun, not yet known to listen
        self._seen: set[str] = set()
        self._gates: list[socket.socket] = []
        self._listeners: list[socket.socket] = []  # of mpirun, behind gates
        self._relays: set[_Relay] = set()
        self.is_starting = True

    def look(self) -> None:
        """Move sockets that mpirun has opened behind gates. Call this every millisecond until a rank has started.

        Raises:
            LaunchError: If another user has already connected to one.
        """
        is_allowed = True
        try:
            self._look(self._pid)
        except OSError as error:  # not permitted, or a file was closed meanwhile
            is_allowed = error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS)
        is_late = time.monotonic() - self._begun_at > _LONGEST_HOLD
        if self._pipe is not None and self._pipe_end is None and (self._listeners or is_late or not is_allowed):
            with contextlib.suppress(OSError):
                self._pipe_end = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def settle(self, has_script_begun: bool) -> None:
        """Keep open only what ranks need: one has started, and therefore all of mpirun has.

        Args:
            has_script_begun: Bool. Whether a script, a descendant of mpirun, may be listening by now.

        Raises:
            LaunchError: If another user has connected to a socket of mpirun.
        """
        self.is_starting = False
        for pid in [self._pid] if has_script_begun else _descendants(self._pid):
            with contextlib.suppress(OSError):
                self._look(pid)
        for gate in [gate for gate in self._gates if gate.getsockname()[0] != _HOST]:
            self._selector.unregister(gate)
            self._gates.remove(gate)
            gate.close()
        for taken in self._sockets.values():
            taken.close()
        self._sockets.clear()

    def close(self) -> None:
        if self._pipe_end is not None:
            os.close(self._pipe_end)
        for relay in list(self._relays):
            relay.close()
        for taken in (*self._gates, *self._listeners, *self._sockets.values()):
            taken.close()

    def _look(self, pid: int) -> None:
        found = {}
        folder = f"/proc/{pid}/fd"
        for file in os.listdir(folder):
            with contextlib.suppress(OSError):
                name = os.readlink(f"{folder}/{file}")
                if name.startswith("socket:"):
                    found[name] = int(file)
        for name in found.keys() - self._seen:
            taken = _take(pid, found[name])
            self._seen.add(name)
            if taken.family in (socket.AF_INET, socket.AF_INET6) and taken.type == socket.SOCK_STREAM:
                self._sockets[name] = taken
            else:
                taken.close()
        for name, taken in list(self._sockets.items()):
            if taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                self._close_off(pid, self._sockets.pop(name))
            elif _is_connected(taken) or name not in found:
                self._sockets.pop(name).close()

    def _close_off(self, pid: int, listener: socket.socket) -> None:
        """Move a listening socket to a port where it answers nobody, and put a gate in its place."""
        self._listeners.append(listener)
        address = listener.getsockname()
        os.kill(pid, signal.SIGSTOP)  # it must not see that its socket is closed for a moment
        try:
            if not _is_stopped(pid):
                return
            _answer_only(listener, [])
            waiting = _accepted(listener)
            listener.shutdown(socket.SHUT_RDWR)
            listener.bind((_HOST if listener.family == socket.AF_INET else "::1", 0))
            listener.listen(socket.SOMAXCONN)
            if intruders := _others_connected(address[1], {connection.getpeername()[:2] for connection in waiting}):
                os.kill(pid, signal.SIGKILL)
                raise LaunchError(
                    f"nobody else may connect to mpirun. Received: a connection of user {min(intruders)} while it "
                    "started. The job was ended; start it on a host where you trust all users"
                )
        finally:
            os.kill(pid, signal.SIGCONT)
        if listener.family == socket.AF_INET:
            self._open_gate(listener, address)
        for connection in waiting:
            self._admit(connection, listener)

    def _open_gate(self, listener: socket.socket, address: tuple[str, int]) -> None:
        gate = socket.socket()
        gate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        gate.bind(address)
        gate.listen(socket.SOMAXCONN)
        gate.setblocking(False)
        self._gates.append(gate)

        def on_connection(_: int) -> None:
            for connection in _accepted(gate):
                self._admit(connection, listener)

        self._selector.register(gate, selectors.EVENT_READ, on_connection)

    def _admit(self, connection: socket.socket, listener: socket.socket) -> None:
        """Connect a client of the gate to mpirun, if it belongs to this user."""
        try:
            is_own = listener.family == socket.AF_INET and _owner(connection) == os.geteuid()
            inner = self._connected(listener) if is_own else None
        except OSError:
            inner = None
        if inner is None:
            connection.close()
        else:
            self._relays.add(_Relay(self, connection, inner, listener))

    def _connected(self, listener: socket.socket) -> socket.socket:
        inner = socket.socket()
        try:
            inner.bind((_HOST, 0))  # nobody else can get its port while it is open
            self._answer(listener, inner.getsockname()[1])
            inner.connect(listener.getsockname())
        except OSError:
            inner.close()
            raise
        return inner

    def _answer(self, listener: socket.socket, port: int | None = None) -> None:
        """Let a socket answer only the existing relays and one more port."""
        ports = [relay.port for relay in self._relays if relay.listener is listener]
        _answer_only(listener, [*ports, *([] if port is None else [port])][-_MOST_PORTS:])

    def _end(self, relay: "_Relay") -> None:
        self._relays.discard(relay)
        with contextlib.suppress(OSError):
            self._answer(relay.listener)


class _Relay:
    """A relayed connection between a rank and mpirun: forwards data in both directions."""

    def __init__(self, owner: Loopback, outer: socket.socket, inner: socket.socket, listener: socket.socket):
        self._owner, self.listener, self.port = owner, listener, inner.getsockname()[1]
        self._ends = (outer, inner)
        self._rest = [b"", b""]  # data from each end that the other has not taken
        for end in self._ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            owner._selector.register(end, selectors.EVENT_READ, self._pass_on)

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(KeyError):
                self._owner._selector.unregister(end)
        self._owner._end(self)  # before the port is free for others
        for end in self._ends:
            end.close()

    def _pass_on(self, _: int) -> None:
        if self._ends[0].fileno() < 0:  # closed by another event of the same round
            return
        for number in (0, 1):
            source, target = self._ends[number], self._ends[1 - number]
            try:
                if not self._rest[number]:
                    self._rest[number] = source.recv(1 << 16)
                    if not self._rest[number]:
                        return self.close()
                self._rest[number] = self._rest[number][target.send(self._rest[number]) :]
            except BlockingIOError:
                pass
            except OSError:
                return self.close()
        for number in (0, 1):
            events = selectors.EVENT_READ * (not self._rest[number])
            events |= selectors.EVENT_WRITE * bool(self._rest[1 - number])
            self._watch(self._ends[number], events)

    def _watch(self, end: socket.socket, events: int) -> None:
        selector = self._owner._selector
        if end not in selector.get_map():
            if events:
                selector.register(end, events, self._pass_on)
        elif events:
            selector.modify(end, events, self._pass_on)
        else:
            selector.unregister(end)


def _take(pid: int, file: int) -> socket.socket:
    """Return another process's socket, given its file descriptor."""
    process = os.pidfd_open(pid)
    try:
        taken = _libc.syscall(_PIDFD_GETFD, process, file, 0)
    finally:
        os.close(process)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "may not take a file of this process")
    return socket.socket(fileno=taken)


def _is_connected(taken: socket.socket) -> bool:
    try:
        taken.getpeername()
    except OSError:
        return False
    return True


def _accepted(listener: socket.socket) -> list[socket.socket]:
    """Accept the pending connections of a listening socket."""
    found = []
    with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while selector.select(0):
            found.append(listener.accept()[0])
    return found


def _answer_only(listener: socket.socket, ports: list[int]) -> None:
    """Make a TCP socket drop all packets except those from these ports of `127.0.0.1`."""
    drop, keep = (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)
    program = []
    if ports:
        program += [(0x20, 0, 0, 0xFFF0000C), (0x15, 1, 0, 0x7F000001), drop]  # the source address in the IPv4 header
        program += [(0x28, 0, 0, 0)]  # the source port in the TCP header
    for port in ports:
        program += [(0x15, 0, 1, port), keep]
    program.append(drop)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


class _Connection(NamedTuple):
    """A TCP socket of this network namespace: the addresses of its ends, and the user that owns it."""

    local: tuple[str, int]
    remote: tuple[str, int]
    user: int


def _connections() -> list[_Connection]:
    """Return the connected, open sockets. A closed one belongs to nobody."""
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/net/{name}", encoding="ascii") as file:
            next(file)
            for line in file:
                _, local, remote, state, _, _, _, user, *_ = line.split()
                if int(state, 16) == _ESTABLISHED:
                    found.append(_Connection(_address(local), _address(remote), int(user)))
    return found


def _address(text: str) -> tuple[str, int]:
    """Parse host and port of `/proc/net/tcp`; an IPv4-mapped IPv6 address becomes an IPv4 address."""
    host, port = text.split(":")
    return socket.inet_ntoa(struct.pack("=I", int(host[-8:], 16))), int(port, 16)


def _owner(connection: socket.socket) -> int | None:
    """Return the user at the other end of a connection; `None` if it is closed or not on this host."""
    ends = connection.getpeername()[:2], connection.getsockname()[:2]
    return next((found.user for found in _connections() if (found.local, found.remote) == ends), None)


def _others_connected(port: int, but: set[tuple[str, int]]) -> set[int]:
    """Return the other users with a connection to a port of this host, except from the addresses in `but`."""
    return {
        found.user
        for found in _connections()
        if found.remote[1] == port and found.user != os.geteuid() and found.local not in but
    }


def _descendants(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    found += map(int, file.read().split())
    return found


def _is_stopped(pid: int) -> bool:
    """Wait until all threads of a process have stopped; return whether they have."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        states = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                states.append(file.read().rpartition(")")[2].split()[0])
        if {*states} == {"T"}:
            return True
        time.sleep(0.0005)
    return False
