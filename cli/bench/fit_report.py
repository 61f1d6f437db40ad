"""The report of `easyscale bench fit`: tables and a plot."""

import statistics
from typing import TYPE_CHECKING

from easyscale.cli import reports
from easyscale.cli.reports import percentiles, speedups
from easyscale.quantities import millis_text

if TYPE_CHECKING:
    import rich.table

__all__ = ["ALONE", "BOUND", "choices_table", "lines", "plot", "summarise", "table"]

BOUND = "no exchange"  # all ranks train without communication
ALONE = "Keras, 1 process"


def summarise(rows: list[dict]) -> list[dict]:
    """Return the rows with `median`, `p10` and `p90` in seconds, `samples_per_second` per rank, and two ratios added.

    `speedup` is the throughput of all ranks relative to one process of stock Keras; `efficiency` is the speed-up per
    rank.
    """

    def of_run(row: dict) -> tuple:
        return row["ranks"], row["batch"], row.get("replication")

    alone = {of_run(row): statistics.median(row["times"]) for row in rows if row["exchange"] == ALONE}
    done = []
    for row in rows:
        found = {**row, **percentiles(row["times"])}
        found["samples_per_second"] = row["batch"] / found["median"]
        found["efficiency"] = alone[of_run(row)] / found["median"]
        found["speedup"] = found["efficiency"] * (1 if row["exchange"] == ALONE else row["ranks"])
        done.append(found)
    return done


def table(rows: list[dict], machine: dict, wanted: dict) -> "rich.table.Table":
    """Return a table of the rows from `summarise`."""
    sections: list[list[list[str]]] = [[]]
    for row in rows:
        sections[-1].append(
            [
                str(row["ranks"]),
                str(row["batch"]),
                row["exchange"],
                millis_text(row["median"]),
                f"{row['samples_per_second']:,.1f}",
                f"{row['speedup']:.2f}",
                f"{row['efficiency']:.0%}",
            ]
        )
        if row["exchange"] == ALONE:
            sections.append([])
    return reports.table(
        f"{wanted['model']}, {wanted['optimizer']}, on {machine['cores']} cores\n"
        f"{machine['mpi']}, Keras {machine['keras']} on {machine['backend']}",
        ["ranks", "batch", "exchange:", "step ms", "samples/s", "speed-up", "efficiency"],
        sections,
        "samples/s and efficiency of a rank, speed-up of all: against Keras in one process",
    )


def choices_table(choices: list[dict]) -> "rich.table.Table":
    """Return a table of what "auto" measured and chose for each number of ranks."""
    rows = []
    for choice in choices:
        for timing in choice["timings"]:
            size = timing["bucket_bytes"]
            is_chosen = {name: timing[name] for name in choice["chosen"]} == choice["chosen"]
            vectors = "one" if size is None else f"of {size / 1e6:.0f} MB"
            millis = millis_text(timing["seconds"])
            rows.append([str(choice["ranks"]), timing["exchange"], vectors, millis, "chosen" * is_chosen])
    title = "what 'auto' chose from: gradients summed up, nothing else done"
    return reports.table(title, ["ranks", "exchange:", "vectors:", "ms", ":"], [rows])


def plot(path: str, rows: list[dict], machine: dict, wanted: dict) -> None:
    """Plot the speed-up against ranks, one line per exchange and batch size."""
    title = f"{wanted['model']}, {wanted['optimizer']} · {machine['cores']} cores ({machine['cpu']})"
    reports.plot(path, title, speedups()[:1], "ranks", lines(rows))


def lines(rows: list[dict]) -> list[tuple[str, str, list[dict]]]:
    """Return the lines of a plot, one per exchange and batch size: label, style, and rows sorted by ranks."""
    found = []
    for exchange, batch in dict.fromkeys((row["exchange"], row["batch"]) for row in rows if row["exchange"] != ALONE):
        own = [row for row in rows if (row["exchange"], row["batch"]) == (exchange, batch)]
        style = "--" if exchange == BOUND else "-"
        found.append((f"{exchange}, batch {batch}", style, sorted(own, key=lambda row: row["ranks"])))
    return found
