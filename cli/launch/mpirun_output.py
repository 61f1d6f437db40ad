"""mpirun's output: the ranks' lines that it forwards, with messages of their workers among them, and its own lines."""

from collections.abc import Callable

from easyscale.cli.launch.runtimes import Runtime
from easyscale.cli.launch.streams import Lines
from easyscale.cli.launch.worker import MARK

__all__ = ["MpirunOutput"]


class MpirunOutput:
    """Sorts the lines that mpirun writes by their origin.

    Args:
        runtime: `Runtime`. Parses the marks of the lines that mpirun forwards.
        has_begun: Callable. Takes a rank; returns whether it writes directly to the launcher. What mpirun forwards
            from such a rank comes from the MPI library.
        on_word: Callable. Takes a rank and a line from its worker.
        on_output: Callable. Takes a rank, `"stdout"` or `"stderr"`, and a line that the rank has written there.

    Attributes:
        has_forwarded: Bool. Whether mpirun has forwarded a line of a rank.
    """

    def __init__(
        self,
        runtime: Runtime,
        has_begun: Callable[[int], bool],
        on_word: Callable[[int, str], None],
        on_output: Callable[[int, str, bytes], None],
    ):
        self._runtime, self._has_begun = runtime, has_begun
        self._on_word, self._on_output = on_word, on_output
        self._lines = {"stdout": Lines(), "stderr": Lines()}
        self._said: list[str] = []
        self.has_forwarded = False

    @property
    def said(self) -> str:
        """mpirun's own lines."""
        return "\n".join(self._said).strip()

    def feed(self, stream: str, data: bytes) -> None:
        """Process `data` that mpirun has written to a stream; empty data marks its end."""
        lines = self._lines[stream]
        for line in lines.feed(data) if data else lines.end():
            self._take(stream, line.decode(errors="surrogateescape"))

    def _take(self, stream: str, line: str) -> None:
        tagged = self._runtime.tagged(line, stream)
        if tagged is None:
            self._said.append(line)
            return
        rank, source, text = tagged
        if text.startswith(MARK):
            self.has_forwarded = True
            self._on_word(rank, text.removeprefix(MARK))
        elif self._has_begun(rank):
            self._said.append(text)
        else:
            self.has_forwarded = True
            self._on_output(rank, source, f"{text}\n".encode(errors="surrogateescape"))
