"""The share of a gradient's numbers that travels."""

from typing import Any

from easyscale.errors import is_number

__all__ = ["check_share", "count_of"]


def check_share(share: Any) -> float:
    """Return a share as a float, or raise `ValueError` if it is invalid."""
    if not is_number(share, above=0) or isinstance(share, bool) or share > 1:
        raise ValueError(f"`share` must be a number above 0, and 1 at most. Received: {share=}. Use such as 0.01")
    return float(share)


def count_of(share: float, length: int) -> int:
    """Return the number of elements in a share of `length`: at least one, if there are any."""
    return min(length, max(1, round(share * length)))
