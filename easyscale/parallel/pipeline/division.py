"""A row of layers in parts that are as even as possible."""

from collections.abc import Sequence

import numpy as np

__all__ = ["divide"]


def divide(
    counts: Sequence[int], across: Sequence[int], parts: int, costs: Sequence[int] | None = None
) -> list[int] | None:
    """Return where to cut a row, so that the largest part is as small as possible, and then so that least crosses.

    Args:
        counts: For each element how much it weighs.
        across: For each place before an element, and behind the last, what crosses there.
        parts: Int. The number of parts, in each of which something weighs.
        costs: For each element what it adds to its part, as measured: within 2 % parts are as large. Defaults to
            `None`: what it weighs.

    Returns:
        The places: 0, then the begin of each other part, then the number of elements. `None` if there are none.

    Example:

    >>> divide([4, 0, 4, 1, 3], [0, 9, 2, 5, 5, 0], 2)
    [0, 2, 5]
    """
    weights, total = (np.concatenate([[0], np.cumsum(row)]) for row in (counts, counts if costs is None else costs))
    first = _least(weights, total, np.full(len(across), 0), parts, bound=None)
    if first is None:
        return None
    largest = max(total[stop] - total[start] for start, stop in zip(first, first[1:], strict=False))
    slack = 0 if costs is None else largest // 50
    return _least(weights, total, np.asarray(across), parts, bound=int(largest + slack))


def _least(
    weights: np.ndarray, total: np.ndarray, across: np.ndarray, parts: int, bound: int | None
) -> list[int] | None:
    """Return the places of the least largest part or, with a bound for the parts, of the least that crosses."""
    count = len(total) - 1
    # For each place the least cost of the parts before it, and where the last of them begins.
    best: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]
    for _ in range(parts):
        found: dict[int, tuple[int, int]] = {}
        for stop in range(1, count + 1):
            for start, (cost, _) in best[-1].items():
                size = int(total[stop] - total[start])
                if start >= stop or weights[stop] == weights[start] or (bound is not None and size > bound):
                    continue
                new = max(cost, size) if bound is None else cost + (int(across[stop]) if stop < count else 0)
                if stop not in found or new < found[stop][0]:
                    found[stop] = new, start
        best.append(found)
    if count not in best[-1]:
        return None
    cuts = [count]
    for found in reversed(best[1:]):
        cuts.append(found[cuts[-1]][1])
    return cuts[::-1]
