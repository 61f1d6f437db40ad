"""One line of the output of `easyscale doctor`."""

from typing import Literal, NamedTuple

__all__ = ["Finding", "Grade"]

Grade = Literal["ok", "warning", "fails"]


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        topic: String. The subject, e.g. `"keras"`.
        text: String. The result.
        grade: `"ok"`; `"warning"`: training works, but probably not well; `"fails"`: it does not. Defaults to `"ok"`.
        cure: String. The remedy. Defaults to `""`: none is needed, or `text` contains it.
        host: String. The host, if there are several. Defaults to `""`.

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
