"""One line of what `easyscale doctor` says."""

from typing import Literal, NamedTuple

__all__ = ["Finding", "Grade"]

Grade = Literal["ok", "warning", "fails"]


class Finding(NamedTuple):
    """What was found.

    Attributes:
        topic: String. What it is about, as `"keras"`.
        text: String. What there is.
        grade: `"ok"`; `"warning"`: training works, but hardly as meant; `"fails"`: it does not. Defaults to `"ok"`.
        cure: String. What to do. Defaults to `""`: nothing, or `text` says it.
        host: String. Where, if there are several hosts. Defaults to `""`.

    Example:

    >>> str(Finding("memory", "0.1 GB are free", "warning", "Start fewer ranks"))
    'warning  memory: 0.1 GB are free. Start fewer ranks'
    """

    topic: str
    text: str
    grade: Grade = "ok"
    cure: str = ""
    host: str = ""

    @property
    def where(self) -> str:
        """Host and topic."""
        return f"{self.host}: {self.topic}" if self.host else self.topic

    @property
    def told(self) -> str:
        """Text and cure."""
        return f"{self.text}. {self.cure}" if self.cure else self.text

    def __str__(self) -> str:
        return f"{self.grade:<9}{self.where}: {self.told}"
