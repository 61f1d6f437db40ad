"""The output of the ranks on this host: pipes or terminals that the launcher reads itself.

mpirun forwards only whole lines, which would hold back a progress bar. Each rank therefore requests its own output over
a socket in Linux's abstract namespace: there is no file, the name cannot be guessed, and both ends must belong to one
user. A rank on another host cannot reach it and writes to mpirun.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import sys
import termios
from typing import NamedTuple

__all__ = ["Lines", "Rank", "Streams", "read"]

STANDARD = {"stdout": 1, "stderr": 2}


class Rank(NamedTuple):
    """A rank that has started.

    Attributes:
        rank: Int. Its number.
        pid: Int. Its worker process, leader of its process group.
        files: Dict from `"stdout"` and `"stderr"` to the file descriptors to read.
        connection: The socket of its worker: lines of JSON, the last of which says how the rank ended.
        job: String. Text that only the environment of this job's processes contains.
    """

    rank: int
    pid: int
    files: dict[str, int]
    connection: socket.socket
    job: str

    def send_signal(self, number: int) -> bool:
        """Send a signal to its process group; return whether it existed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._is_there():
                kill = os.killpg if os.getpgid(self.pid) == self.pid else os.kill
                kill(self.pid, number)
                return True
        return False

    def _is_there(self) -> bool:
        """Return whether the process of this id is still the rank's: ids are reused."""
        try:
            with open(f"/proc/{self.pid}/environ", "rb") as file:
                return self.job.encode() in file.read()
        except OSError:
            return False


class Streams:
    """The socket where ranks request their output.

    Args:
        terminals: The names, `"stdout"` or `"stderr"`, of the chief's streams that are terminals.

    Attributes:
        name: String. The socket's name, for the ranks.
        socket: The listening socket, readable when a rank connects.
    """

    def __init__(self, terminals: tuple[str, ...] = ()):
        self.name = f"easyscale-{secrets.token_hex(16)}"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(f"\0{self.name}")
        self.socket.listen(1024)
        self._terminals = terminals
        self._screens: list[tuple[int, int]] = []  # (terminal of the chief, the launcher's own)

    def accept(self) -> Rank | None:
        """Give a rank its output; return the rank, or `None` if the request came from no rank."""
        connection, _ = self.socket.accept()
        connection.settimeout(5)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, user = (int.from_bytes(peer[i : i + 4], sys.byteorder) for i in (0, 4))
        if user != os.getuid():
            connection.close()
            return None
        readers, writers = {}, []
        try:
            rank = int(connection.recv(20))
            for stream in STANDARD:
                readers[stream], writer = self._open(rank, stream)
                writers.append(writer)
            socket.send_fds(connection, [b"\n"], writers)
            return Rank(rank, pid, readers, connection, self.name)
        except (OSError, ValueError):  # it has ended, or there are no file descriptors left: mpirun forwards
            connection.close()
            for file in readers.values():
                os.close(file)
            return None
        finally:
            for file in writers:
                os.close(file)

    def resize(self) -> None:
        """Set the chief's terminals to the size of the launcher's own."""
        for screen, own in self._screens:
            with contextlib.suppress(OSError):  # closed by now
                fcntl.ioctl(screen, termios.TIOCSWINSZ, fcntl.ioctl(own, termios.TIOCGWINSZ, bytes(8)))

    def close(self) -> None:
        self.socket.close()

    def _open(self, rank: int, stream: str) -> tuple[int, int]:
        """Open a stream; return its ends to read from and to write to."""
        if rank != 0 or stream not in self._terminals:
            return os.pipe()
        reader, writer = os.openpty()
        mode = termios.tcgetattr(writer)
        mode[1] &= ~termios.OPOST  # bytes stay as they are; the launcher's own terminal translates them
        termios.tcsetattr(writer, termios.TCSANOW, mode)
        self._screens.append((reader, STANDARD[stream]))
        self.resize()
        return reader, writer


class Lines:
    """Joins pieces of a stream into whole lines, without newlines.

    Example:

    >>> lines = Lines()
    >>> lines.feed(b"one\\ntw"), lines.feed(b"o\\nthree"), lines.end()
    ([b'one'], [b'two'], [b'three'])
    """

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        return lines

    def end(self) -> list[bytes]:
        """Return the last line, if it has no newline."""
        rest, self._partial = self._partial, b""
        return [rest] if rest else []


def read(file: int) -> bytes:
    """Return the data that can be read; empty at the end."""
    try:
        return os.read(file, 1 << 16)
    except OSError as error:
        if error.errno == errno.EIO:  # the end of a terminal
            return b""
        raise
