"""Building blocks of reports: progress bars, percentiles, tables, JSON files and plots."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import rich.console
    import rich.progress
    import rich.table

__all__ = ["Panel", "percentiles", "plot", "progress", "speedups", "table", "write"]


def progress(
    console: "rich.console.Console", is_counted: bool = True, is_shown: bool = True
) -> "rich.progress.Progress":
    """Return a progress display with the elapsed time.

    Args:
        console: The console. The display disappears at the end.
        is_counted: Bool. Whether the total is known. Defaults to `True`: there is a bar.
        is_shown: Bool. Whether to show it at all. Defaults to `True`.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    description = TextColumn("{task.description}")
    columns: list[ProgressColumn] = (
        [description, BarColumn(), MofNCompleteColumn()] if is_counted else [SpinnerColumn(), description]
    )
    return Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=2,  # the measurement needs the cores
        disable=not is_shown,
    )


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return the `median`, and the percentiles `p10` and `p90`.

    Example:

    >>> percentiles([3.0, 1.0, 2.0])
    {'median': 2.0, 'p10': 1.0, 'p90': 3.0}
    """
    ordered = sorted(times)
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p10": ordered[round(0.1 * last)],
        "p90": ordered[round(0.9 * last)],
    }


def table(
    title: str, columns: Sequence[str], sections: Iterable[Iterable[Sequence[str]]], caption: str | None = None
) -> "rich.table.Table":
    """Return a table with names aligned left and numbers aligned right.

    Args:
        title: String.
        columns: The titles of the columns. A trailing colon, which is not shown, marks a column of names.
        sections: Groups of rows.
        caption: String. Defaults to `None`.
    """
    import rich.box
    import rich.table

    made = rich.table.Table(
        title=title, caption=caption, box=rich.box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )
    for name in columns:
        made.add_column(name.rstrip(":"), justify="left" if name.endswith(":") else "right", no_wrap=True)
    for section in sections:
        for row in section:
            made.add_row(*row)
        made.add_section()
    return made


def write(path: str, found: dict[str, Any]) -> None:
    """Write a dict to a JSON file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


class Panel(NamedTuple):
    """One plot of a figure: a column of numbers against another.

    Attributes:
        column: String. The name of the column.
        scale: Float. Factor for its numbers.
        look: Arguments of `matplotlib.axes.Axes.set`: `title`, `ylabel`, scales, ...
        band: The names of two columns; the area between them is shaded. Defaults to none.
        has_ideal: Bool. Whether to draw the line on which both columns are equal. Defaults to `False`.
    """

    column: str
    scale: float
    look: dict[str, Any]
    band: tuple[str, ...] = ()
    has_ideal: bool = False


def speedups(scale: str = "linear") -> list[Panel]:
    """Return the panels of speed-up and efficiency against ranks."""
    look = {"title": "speed-up over one process", "xlabel": "ranks", "xscale": scale, "yscale": scale}
    efficiency = {"title": "efficiency, %", "xlabel": "ranks", "xscale": scale}
    return [Panel("speedup", 1, look, has_ideal=True), Panel("efficiency", 100, efficiency)]


def plot(
    path: str,
    title: str,
    panels: Sequence[Panel],
    over: str,
    lines: Sequence[tuple[str, str, Sequence[dict]]],
    text: Callable[[int], str] = str,
) -> None:
    """Draw panels side by side, and save the figure.

    Args:
        path: String.
        title: String. The title of the figure.
        panels: The figure's `Panel`s.
        over: String. The name of the column on the horizontal axis.
        lines: For each line its label, its style, and its rows, as dicts.
        text: Function. Takes a number on the horizontal axis, and returns its tick label. Defaults to `str`.
    """  # fmt: skip
    from matplotlib.figure import Figure

    ticks = sorted({row[over] for _, _, rows in lines for row in rows})
    figure = Figure(figsize=(1 + 5.5 * len(panels), 4.5), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, style, rows in lines:
            at = [row[over] for row in rows]
            middle, *band = ([panel.scale * row[name] for row in rows] for name in (panel.column, *panel.band))
            (drawn,) = axes.plot(at, middle, style, marker="o", label=label)
            if band:
                axes.fill_between(at, *band, alpha=0.15, color=drawn.get_color())
        if panel.has_ideal:
            axes.plot(ticks, ticks, ":", color="gray", label="as many times as ranks")
        axes.set(**panel.look)
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom=0)
        axes.set_xticks(ticks, [text(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(True, alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=120)
