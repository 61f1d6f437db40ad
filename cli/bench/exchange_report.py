"""The report of `easyscale bench exchange`: a table and a plot."""

import itertools
from typing import TYPE_CHECKING

from easyscale.cli import reports
from easyscale.cli.reports import Panel, percentiles
from easyscale.quantities import bytes_text, micros_text

if TYPE_CHECKING:
    import rich.table

__all__ = ["plot", "summarise", "table"]


def summarise(rows: list[dict], ranks: int) -> list[dict]:
    """Return the rows with `median`, `p10` and `p90` in seconds, `bus_bandwidth` in bytes/s and `ratio_to_mpi` added.

    The bus bandwidth, `2 * S * (P - 1) / P / t`, is the minimum that each rank has to send, divided by the time. It is
    comparable across numbers of ranks, and with the speed of memory or network.
    """
    done = []
    for row in rows:
        found = {**row, "repeats": len(row["times"]), **percentiles(row["times"])}
        found["bus_bandwidth"] = 2 * row["bytes"] * (ranks - 1) / ranks / found["median"]
        done.append(found)
    mpi = {row["bytes"]: row["median"] for row in done if row["exchange"] == "mpi"}
    for row in done:
        row["ratio_to_mpi"] = mpi[row["bytes"]] / row["median"] if row["bytes"] in mpi else None
    return done


def table(rows: list[dict], machine: dict) -> "rich.table.Table":
    """Return a table of the rows from `summarise`."""
    has_mpi = any(row["ratio_to_mpi"] is not None for row in rows)
    return reports.table(
        f"allreduce over {_ranks_text(machine)} on {machine['cores']} cores\n{machine['mpi']}",
        ["size", "exchange:", "median µs", "p10 - p90", "bus GB/s", "ratio"],
        ([_cells(row) for row in of_size] for _, of_size in itertools.groupby(rows, lambda row: row["bytes"])),
        "ratio: how many times as fast as mpi" if has_mpi else None,
    )


def plot(path: str, rows: list[dict], machine: dict) -> None:
    """Plot time and bus bandwidth against size, one line per exchange."""
    names = dict.fromkeys(row["exchange"] for row in rows)
    lines = [(name, "-", [row for row in rows if row["exchange"] == name]) for name in names]
    look = {"xscale": "log", "yscale": "log", "xlabel": "size of the vector"}
    time = {**look, "title": "time: median, p10 to p90 shaded", "ylabel": "µs"}
    bandwidth = {**look, "title": "bus bandwidth: 2 S (P - 1) / P / time", "ylabel": "GB/s"}
    panels = [Panel("median", 1e6, time, ("p10", "p90")), Panel("bus_bandwidth", 1e-9, bandwidth)]
    where = f"{machine['cores']} cores ({machine['cpu']}) · {machine['mpi']}"
    reports.plot(path, f"allreduce over {_ranks_text(machine)} · {where}", panels, "bytes", lines, bytes_text)


def _cells(row: dict) -> list[str]:
    return [
        bytes_text(row["bytes"]),
        row["exchange"],
        micros_text(row["median"]),
        f"{micros_text(row['p10'])} - {micros_text(row['p90'])}",
        f"{row['bus_bandwidth'] / 1e9:.2f}",
        "-" if row["ratio_to_mpi"] is None else f"{row['ratio_to_mpi']:.2f}",
    ]


def _ranks_text(machine: dict) -> str:
    """Describe the number of ranks in words."""
    servers = machine["servers"]
    return f"{machine['ranks'] - servers} workers with {servers} servers" if servers else f"{machine['ranks']} ranks"
