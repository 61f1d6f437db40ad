"""Captures what the ranks write to stderr, in case they fail, with or without showing it."""

import re

from easyscale.cli.launch.output import Screen

__all__ = ["Captured"]

_KEPT = 1 << 16  # bytes for each rank
_LINES = 20
_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit)\b")


class Captured(Screen):
    """A screen that captures stderr.

    Args:
        show: Bool. Whether it also shows all output.
    """

    def __init__(self, show: bool):
        super().__init__()
        self._show = show
        self._errors: dict[int, bytes] = {}

    @property
    def terminals(self) -> tuple[str, ...]:
        return super().terminals if self._show else ()

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        if stream == "stderr":
            self._errors[rank] = (self._errors.get(rank, b"") + data)[-_KEPT:]
        if self._show:
            super().feed(rank, stream, data)

    def say(self, line: str) -> None:
        if self._show:
            super().say(line)

    @property
    def warnings(self) -> list[str]:
        """EasyScale's warnings, each message once."""
        found = [message for text in self._texts for message in re.findall(r"EasyScaleWarning: (.*)", text)]
        return list(dict.fromkeys(found))

    @property
    def error(self) -> str | None:
        """The last line that names an exception, from the first rank with one."""
        lines = (line for text in self._texts for line in reversed(text.splitlines()) if _ERROR.match(line))
        return next(lines, None)

    @property
    def end_of_errors(self) -> list[str]:
        """The last lines of the first rank that names an exception, else of the first rank with any."""
        texts = [text for text in self._texts if any(map(_ERROR.match, text.splitlines()))] or self._texts[:1]
        return texts[0].splitlines()[-_LINES:] if texts else []

    @property
    def _texts(self) -> list[str]:
        return [self._errors[rank].decode(errors="replace") for rank in sorted(self._errors)]
