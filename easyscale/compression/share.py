"""How many of a gradient's numbers travel."""

from typing import Any

from easyscale.errors import is_number

__all__ = ["check_share", "count_of"]


def check_share(share: Any) -> float:
    """Return the part of all numbers that travels, or raise `ValueError` if it is none."""
    if not is_number(share, above=0) or isinstance(share, bool) or share > 1:
        raise ValueError(f"`share` must be a number above 0, and 1 at most. Received: {share=}. Use such as 0.01")
    return float(share)


def count_of(share: float, length: int) -> int:
    """Return how many of `length` numbers a share is: one at least, if there are some."""
    return min(length, max(1, round(share * length)))
