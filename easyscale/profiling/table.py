"""Table of the parts of a step, with a row for each rank."""

from collections.abc import Sequence

from easyscale.profiling.gathered import Recorded
from easyscale.timeline import Part

__all__ = ["table"]


def table(ranks: Sequence[Recorded]) -> list[str]:
    """Return the lines of a table: milliseconds of each part of a step, without parts that no rank has.

    Args:
        ranks: The recordings of all ranks.
    """
    names = [name for name in Part.ALL if any(rank.parts.get(name) for rank in ranks)]
    rows = [["rank", *names, "step"]]
    for rank in ranks:
        seconds = [*(rank.parts.get(name, 0.0) for name in names), rank.step]
        rows.append([str(rank.rank), *(f"{1e3 * value:.2f}" for value in seconds)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    steps = max(len(rank.waits) for rank in ranks)
    title = f"where the time of {steps} steps went, in ms of a step:"
    return [title, *("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)]
