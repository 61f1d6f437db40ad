"""The report of `bench suite`: tables as text, Markdown and JSON, and a plot for each model."""

import importlib.util
import json
import os
from collections.abc import Callable

from easyscale.cli import reports
from easyscale.cli.bench import fit_report
from easyscale.cli.bench.fit_report import ALONE, BOUND
from easyscale.cli.reports import speedups
from easyscale.cli.suite.cells import OOM, Cell

__all__ = ["in_short", "text", "write"]


def in_short(found: dict) -> str:
    """Describe the result of a cell in words."""
    if "failed" in found:
        return found["failed"]
    return ", ".join(
        f"{row['exchange']} {_rate(row, found):,.1f}/s" for row in found["rows"] if row["exchange"] != BOUND
    )


def write(folder: str, cells: dict[Cell, dict], settings: dict) -> None:
    """Write `tables.txt`, `tables.md`, `results.json` and plots."""
    rows = _rows(cells)
    _write(folder, "tables.txt", text(cells))
    _write(folder, "tables.md", _markdown(cells))
    machine = next((found["machine"] for found in cells.values() if "machine" in found), None)
    _write(folder, "results.json", json.dumps({"machine": machine, "settings": settings, "rows": rows}, indent=1))
    if importlib.util.find_spec("matplotlib") is not None:
        for model in dict.fromkeys(cell.model for cell in cells):
            own = [row for row in rows if row["model"] == model and "failed" not in row]
            if own:
                path = os.path.join(folder, f"{model}.png")
                reports.plot(path, model, speedups(), "ranks", fit_report.lines(own))


def text(cells: dict[Cell, dict]) -> str:
    """Return all tables as text, with aligned columns."""
    parts = []
    for title, lines in _tables(cells):
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        made = [
            "  ".join(value.ljust(width) if column == 0 else value.rjust(width)
                      for column, (value, width) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]  # fmt: skip
        parts.append("\n".join([title, "-" * len(made[0]), *made]))
    return "\n\n".join(parts) + "\n"


def _markdown(cells: dict[Cell, dict]) -> str:
    parts = []
    for title, (head, *lines) in _tables(cells):
        rule = "|".join(["---"] + ["---:"] * (len(head) - 1))
        rows = [f"| {' | '.join(line)} |" for line in lines]
        parts.append("\n".join([f"## {title}", "", f"| {' | '.join(head)} |", f"|{rule}|", *rows]))
    return "\n\n".join(parts) + "\n"


def _tables(cells: dict[Cell, dict]) -> list[tuple[str, list[list[str]]]]:
    """Return tables of the throughput of all ranks and of the efficiency, by exchange, then one of all throughputs."""
    columns = _columns(cells)
    tables = []
    for replication, name in columns or [("between_graph", "samples/s")]:
        for quantity, show in (("samples/s of all ranks", _rate_text), ("efficiency", _efficiency_text)):
            tables.append((f"{name}: {quantity}", _grid(cells, replication, name, show)))
    if len(columns) > 1:
        tables.append(("samples/s of all ranks, beside each other", _beside(cells, columns)))
    return tables


def _columns(cells: dict[Cell, dict]) -> list[tuple[str, str]]:
    """Return the replications and exchanges that were measured on all ranks."""
    found = [(cell.replication, row["exchange"]) for cell, found in cells.items() for row in found.get("rows", ())]
    return [(replication, name) for replication, name in dict.fromkeys(found) if name != ALONE]


def _grid(cells: dict[Cell, dict], replication: str, name: str, show: Callable) -> list[list[str]]:
    ranks = sorted({cell.ranks for cell in cells})
    lines = [["model", "batch", *(f"{number} rank{'s' * (number > 1)}" for number in ranks)]]
    for model, batch in dict.fromkeys((cell.model, cell.batch) for cell in cells):
        shown = (_shown(cells.get(Cell(model, batch, number, replication)), name, show) for number in ranks)
        lines.append([model, str(batch), *shown])
    return lines


def _beside(cells: dict[Cell, dict], columns: list[tuple[str, str]]) -> list[list[str]]:
    lines = [["model", "batch", "ranks", *(name for _, name in columns)]]
    for row in dict.fromkeys(cell[:3] for cell in cells):
        shown = (_shown(cells.get(Cell(*row, replication)), name, _rate_text) for replication, name in columns)
        lines.append([*map(str, row), *shown])
    return lines


def _shown(found: dict | None, name: str, show: Callable) -> str:
    if found is None:
        return ""
    if "failed" in found:
        return OOM if found["failed"] == OOM else "failed"
    own = [row for row in found["rows"] if row["exchange"] == name]
    return show(own[0], found) if own else "-"


def _rate_text(row: dict, found: dict) -> str:
    return f"{_rate(row, found):,.1f}"


def _efficiency_text(row: dict, found: dict) -> str:
    return f"{row['efficiency']:.0%}"


def _rows(cells: dict[Cell, dict]) -> list[dict]:
    rows = []
    for cell, found in cells.items():
        if "failed" in found:
            rows.append({**cell._asdict(), "failed": found["failed"]})
        for row in found.get("rows", ()):
            kept = {name: row[name] for name in ("exchange", "median", "p10", "p90", "speedup", "efficiency")}
            rows.append({**cell._asdict(), **kept, "samples_per_second": _rate(row, found)})
    return rows


def _rate(row: dict, found: dict) -> float:
    """Return the samples per second of all ranks."""
    return row["samples_per_second"] * (1 if row["exchange"] == ALONE else row["ranks"])


def _write(folder: str, name: str, content: str) -> None:
    path = os.path.join(folder, name)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(f"{path}.new", path)
