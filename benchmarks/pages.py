"""Tables that a benchmark writes into a page, between two marks."""

from collections.abc import Sequence
from pathlib import Path

__all__ = ["replace"]


def replace(page: Path, name: str, lines: Sequence[str]) -> None:
    """Put `lines` between the marks `<!-- name -->` and `<!-- end of name -->` of a page."""
    before, start, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not (start and end):
        raise ValueError(f"{page.name} must have the marks of '{name}'")
    page.write_text(before + start + "\n".join(lines) + "\n" + end + after)
