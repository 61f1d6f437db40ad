"""Division of a sequence of layers into parts as even as possible."""

from collections.abc import Sequence

import numpy as np

__all__ = ["divide"]


def divide(
    counts: Sequence[int], across: Sequence[int], parts: int, costs: Sequence[int] | None = None
) -> list[int] | None:
    """Return the cuts that minimize the size of the largest part and, among these, the total crossing.

    Args:
        counts: The weight of each element.
        across: The cost of a cut at each position: before each element, and after the last.
        parts: Int. The number of parts, each with a nonzero weight.
        costs: The measured size of each element; parts may exceed the minimum by 2 %. Defaults to `None`: its weight.

    Returns:
        The positions: 0, the start of each further part, then the number of elements. `None` if there are none.

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
    """Return the positions with the smallest largest part or, given a bound on parts, the least crossing."""
    count = len(total) - 1
    # For each position, the least cost of the parts before it, and the start of the last of them.
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
