"""Shows the ranks' output: the chief's bytes as they arrive, other ranks' lines with a prefix.

    [1] a line of rank 1

A line of another rank waits, for at most a second, until the chief has completed its current line. A traceback, or an
error or warning of one line, that another rank has already shown is not repeated. What TensorFlow's libraries log
while they start is shown only if a signal kills the rank, or with `TF_CPP_MIN_LOG_LEVEL=0`.

Except for `Screen.finish`, nothing here blocks on the reader of the output (a pager, a terminal after Ctrl-S): the
launcher may have to end the job meanwhile. Output that the reader does not take is buffered, up to a limit at which the
launcher stops reading from the ranks.
"""

import contextlib
import os
import re
import select
import selectors
import stat
import time
from collections.abc import Callable, Collection, Sequence

from easyscale.cli.launch.logs import Logs
from easyscale.cli.launch.streams import STANDARD

__all__ = ["Screen"]

_PATIENCE = 1.0  # seconds
_MOST_KEPT = 1 << 22  # bytes of output that the reader has not taken
_TRACEBACK = b"Traceback (most recent call last):\n"
_ONE_LINE = re.compile(rb"(EasyScaleWarning|\w+Error): ")  # as `errors.show_in_one_line` writes them
# What Abseil logs before a program has initialized its logging, which Python programs do not do; except fatal errors.
_AT_START = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)|[IWE]0000 00:00:\d+\.\d+ +\d+ \S+:\d+\] "
    rb"|To enable the following instructions: "
)
_LINKS = (b"During handling of the above exception", b"The above exception was the direct cause")


class Screen:
    """Shows all ranks' output, stdout on stdout and stderr on stderr.

    Args:
        chief: Callable. Takes the bytes of the chief's stdout, which are then not shown. Defaults to `None`.
        logs: `Logs`. Writes all output to files. Defaults to `None`.
        shown: The ranks whose output is shown. Defaults to `None`: all.
        hosts: The host of each rank, shown next to its number. Defaults to none: all ranks are on this host.
    """

    def __init__(
        self,
        chief: Callable[[bytes], None] | None = None,
        logs: Logs | None = None,
        shown: Collection[int] | None = None,
        hosts: Sequence[str] = (),
    ):
        self._chief, self._logs, self._shown_ranks, self._hosts = chief, logs, shown, hosts
        self._has_lost_logs = False
        opened: dict[tuple[int, int, int], _Sink] = {}
        self._sinks = {}
        for stream, file in STANDARD.items():
            status = os.fstat(file)
            self._sinks[stream] = opened.setdefault((status.st_dev, status.st_ino, status.st_rdev), _Sink(file, logs))
        self._sources: dict[tuple[int, str], _Chief | _Other] = {}
        self._shown: dict[bytes, int] = {}  # text of a traceback -> rank that has shown it
        self._hidden: dict[int, list[bytes]] = {}  # by rank, what libraries log while they start
        self._hides = os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0"

    @property
    def terminals(self) -> tuple[str, ...]:
        """The chief's streams that are terminals."""
        return tuple(
            stream
            for stream, file in STANDARD.items()
            if os.isatty(file) and not (stream == "stdout" and self._chief is not None)
        )

    def has_shown(self, words: bytes) -> bool:
        """Return whether a rank has shown a traceback, or an error or warning of one line, with these words."""
        return any(words in text for text in self._shown)

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Show `data` that a rank has written to a stream; empty data marks its end."""
        if self._logs is not None and data:
            self._logs.of_rank(rank, stream, data)
        if self._shown_ranks is not None and rank not in self._shown_ranks:
            return
        if rank == 0 and stream == "stdout" and self._chief is not None:
            self._chief(data)
            return
        if (rank, stream) not in self._sources:
            hidden = self._hidden.setdefault(rank, []) if self._hides else None
            sink, once = self._sinks[stream], _Once(rank, self._shown, hidden)
            own: _Chief | _Other = _Chief(sink, once) if rank == 0 else _Other(self._mark(rank), sink, once)
            self._sources[rank, stream] = own
        source = self._sources[rank, stream]
        source.feed(data) if data else source.end()

    def show_hidden(self, rank: int | None) -> None:
        """Show what the libraries of a rank have logged while they started, because it was killed."""
        if rank is not None:
            mark = self._mark(rank) if rank else b""
            self._sinks["stderr"].lines([mark + line for line in self._hidden.pop(rank, [])])

    def _mark(self, rank: int) -> bytes:
        return f"[{rank} {self._hosts[rank]}] ".encode() if rank < len(self._hosts) else f"[{rank}] ".encode()

    def tick(self) -> None:
        """Show lines that have waited long enough. Call this a few times a second."""
        self._look_for_lost_logs()
        for sink in self._sinks.values():
            sink.tick()

    def watch(self, selector: selectors.BaseSelector | None) -> None:
        """Use a selector to wait for the reader; its data are functions of a file descriptor. `None`: no selector."""
        for sink in self._sinks.values():
            sink.watch(selector)

    def is_full(self, stream: str) -> bool:
        """Return whether a stream's buffer is full, so that no more should be fed."""
        return self._sinks[stream].is_full

    def hurry(self) -> None:
        """Drop output above the limit from now on instead of being full, so that ranks can write and end."""
        for sink in self._sinks.values():
            sink.drops = True

    def end(self) -> None:
        """Show all that is left."""
        for source in self._sources.values():
            source.end()
        if self._logs is not None:
            self._logs.end()
        self._look_for_lost_logs()
        for sink in self._sinks.values():
            sink.end()

    def _look_for_lost_logs(self) -> None:
        if self._logs is not None and self._logs.failure is not None and not self._has_lost_logs:
            self._has_lost_logs = True
            self.say(f"easyscale: lines are lost from the logs, and the job goes on: {self._logs.failure}")

    def finish(self, seconds: float | None = None) -> None:
        """Wait until the reader has taken everything; after `seconds`, if given, drop the rest. Call this last."""
        for sink in self._sinks.values():
            sink.finish(seconds)

    def lost(self) -> OSError | None:
        """Return the error that stopped the output, once for each file; `None` if there is nothing new."""
        found = [sink.take_error() for sink in self._sinks.values()]
        return next(filter(None, found), None)

    def say(self, line: str) -> None:
        """Show a line of the launcher on stderr."""
        self._sinks["stderr"].lines([f"{line}\n".encode()])


class _Sink:
    """One output file, perhaps both stdout and stderr, in which the chief may be in the middle of a line.

    Attributes:
        drops: Bool. Whether output beyond the limit is dropped.
    """

    def __init__(self, file: int, logs: Logs | None):
        self._file, self._logs = file, logs
        self._out = _opened_again(file)
        self._inside = False
        self._waiting: list[bytes] = []
        self._since = 0.0
        self._kept = bytearray()  # what the reader has not taken
        self._selector: selectors.BaseSelector | None = None
        self._is_lost = False
        self._error: OSError | None = None
        self.drops = False

    def take_error(self) -> OSError | None:
        """Return the error that stopped the output, once."""
        error, self._error = self._error, None
        return error

    def through(self, data: bytes) -> None:
        self._write(data)
        self._inside = not data.endswith(b"\n")
        if not self._inside:
            self._release()

    def lines(self, lines: list[bytes]) -> None:
        if lines and not self._waiting:
            self._since = time.monotonic()
        self._waiting += lines
        if not self._inside:
            self._release()

    def tick(self) -> None:
        self._flush()
        if self._waiting and time.monotonic() - self._since > _PATIENCE:
            self.end()

    def end(self) -> None:
        if self._waiting and self._inside:
            self._waiting.insert(0, b"\n")
            self._inside = False
        self._release()

    @property
    def is_full(self) -> bool:
        return len(self._kept) >= _MOST_KEPT and not self.drops

    def watch(self, selector: selectors.BaseSelector | None) -> None:
        self._selector = selector

    def finish(self, seconds: float | None) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        while self._kept and (end is None or time.monotonic() < end):
            select.select([], [self._out], [], 1.0 if end is None else max(0.0, end - time.monotonic()))
            self._flush()
        self._kept.clear()
        if self._out != self._file:
            os.close(self._out)
            self._out = self._file

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._write(b"".join(waiting))

    def _write(self, data: bytes) -> None:
        if self._logs is not None:
            self._logs.shown(self._file, data)
        if not (self._is_lost or (self.drops and len(self._kept) >= _MOST_KEPT)):
            self._kept += data
            self._flush()

    def _flush(self, _: int = 0) -> None:
        """Write as much as possible without blocking."""
        # A write to a file that could not be reopened blocks, unless it is this short.
        most = 1 << 16 if self._out != self._file else select.PIPE_BUF
        while self._kept and _takes_more(self._out):
            try:
                del self._kept[: os.write(self._out, bytes(self._kept[:most]))]
            except BlockingIOError:
                break
            except OSError as error:
                self._is_lost, self._error = True, error
                self._kept.clear()
        if self._selector is not None:
            is_watched = self._out in self._selector.get_map()
            if is_watched and not self._kept:
                self._selector.unregister(self._out)
            elif self._kept and not is_watched:
                self._selector.register(self._out, selectors.EVENT_WRITE, self._flush)


def _opened_again(file: int) -> int:
    """Reopen a pipe or terminal to write without blocking: other processes share the original.

    Return the file itself if that is not possible.
    """
    if stat.S_ISFIFO(os.fstat(file).st_mode) or os.isatty(file):
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return file


def _takes_more(file: int) -> bool:
    """Return whether writing to a file succeeds or fails at once."""
    return bool(select.select([], [file], [], 0)[1])


class _Once:
    """Filters out tracebacks, and errors and warnings of one line, that another rank has already shown.

    What libraries log while they start is moved to the list `hidden`, if there is one.
    """

    def __init__(self, rank: int, shown: dict[bytes, int], hidden: list[bytes] | None):
        self._rank = rank
        self._shown, self._hidden = shown, hidden
        self._block: list[bytes] = []
        self._after_repeated = False

    def may_hide(self, begin: bytes) -> bool:
        """Return whether a line that begins like this may not be shown."""
        is_log = self._hidden is not None and _AT_START.match(begin) is not None
        return bool(self._block) or _TRACEBACK.startswith(begin) or is_log

    def lines(self, line: bytes) -> list[bytes]:
        """Return the lines to show once `line` has arrived."""
        if line == _TRACEBACK:
            before = self.end()
            self._block = [line]
            return before
        if self._block:
            self._block.append(line)
            return [] if line.startswith(b" ") else self.end()
        if self._after_repeated and (line == b"\n" or line.startswith(_LINKS)):
            return []
        self._after_repeated = False
        if self._hidden is not None and _AT_START.match(line):
            self._hidden.append(line)
            return []
        is_repeated = _ONE_LINE.match(line) and self._shown.setdefault(line, self._rank) != self._rank
        return [] if is_repeated else [line]

    def end(self) -> list[bytes]:
        block, self._block = self._block, []
        if not block:
            return []
        self._after_repeated = self._shown.setdefault(b"".join(block), self._rank) != self._rank
        return [] if self._after_repeated else block


class _Other:
    """A stream of a rank that is not the chief: whole lines with a prefix."""

    def __init__(self, mark: bytes, sink: _Sink, once: _Once):
        self._mark, self._sink, self._once = mark, sink, once
        self._partial = b""

    def feed(self, data: bytes) -> None:
        *lines, partial = (self._partial + data).split(b"\n")
        self._partial = _overwritten(partial)
        for line in lines:
            self._show(self._once.lines(_overwritten(line).rstrip(b"\r") + b"\n"))

    def end(self) -> None:
        partial, self._partial = self._partial, b""
        if partial:
            self._show(self._once.lines(partial + b"\n"))
        self._show(self._once.end())

    def _show(self, lines: list[bytes]) -> None:
        self._sink.lines([self._mark + line for line in lines])


class _Chief:
    """A stream of the chief: every byte as it arrives, except for a traceback that may be a repetition."""

    def __init__(self, sink: _Sink, once: _Once):
        self._sink = sink
        self._once = once
        self._line = b""  # the part of the current line that has not been shown
        self._begun = False  # whether a part of it has been shown

    def feed(self, data: bytes) -> None:
        *lines, self._line = _split(self._line + data)
        out = []
        for line in lines:
            out += [line] if self._begun else self._once.lines(line)
            self._begun = False
        if self._line and (self._begun or not self._once.may_hide(self._line)):
            out.append(self._line)
            self._line, self._begun = b"", True
        if out:
            self._sink.through(b"".join(out))

    def end(self) -> None:
        rest = b"".join(self._once.end()) + self._line
        self._line = b""
        if rest:
            self._sink.through(rest)


def _overwritten(line: bytes) -> bytes:
    """Drop what a progress bar has overwritten: all before the last carriage return that is followed by text."""
    text = line.rstrip(b"\r")
    return text.rsplit(b"\r", 1)[-1] + line[len(text) :][:1]


def _split(data: bytes) -> list[bytes]:
    """Split after each newline; the last part, perhaps empty, has none."""
    *lines, rest = data.split(b"\n")
    return [*(line + b"\n" for line in lines), rest]
