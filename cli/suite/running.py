"""Measures the missing cells one after the other, and writes all tables after each."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator

from easyscale.cli import reports
from easyscale.cli.suite import report
from easyscale.cli.suite.cells import OOM, Cell, measure, read
from easyscale.errors import EasyScaleError

__all__ = ["run"]


def run(folder: str, cells: dict[Cell, list[str]], settings: dict, memory: int, timeout: float) -> None:
    """Measure cells into a folder, resuming an earlier run.

    Args:
        folder: String. Folder of tables and plots, with a subfolder `cells` for the cells.
        cells: Dict from each `Cell` to its options of `easyscale bench fit`.
        settings: Dict. Settings that must be the same for all cells of a folder.
        memory: Int. Bytes that all ranks of a cell may use together.
        timeout: Float. Seconds that a cell may take.
    """
    import rich.console

    inside = os.path.join(folder, "cells")
    os.makedirs(inside, exist_ok=True)
    console = rich.console.Console(stderr=True)
    with _alone(folder):
        _check_settings(folder, settings)
        done = {cell: found for cell in cells if (found := read(inside, cell)) and _is_final(found)}
        waiting = [cell for cell in cells if cell not in done]
        if done:
            console.print(f"{len(done)} of {len(cells)} cells are in {folder} already", highlight=False)
        progress = reports.progress(console)
        seconds = {cell: found["seconds"] for cell, found in done.items()}
        with progress:
            task = progress.add_task("", total=len(cells), completed=len(done))
            for number, cell in enumerate(waiting):
                left = _time_left(seconds, waiting[number:])
                progress.update(task, description=f"{cell}{', ' * bool(left)}{left}")
                processes = 1 if cell.is_in_graph else cell.ranks
                found = measure(inside, cell, cells[cell], memory // processes, timeout)
                done[cell], seconds[cell] = found, found["seconds"]
                progress.advance(task)
                left = _time_left(seconds, waiting[number + 1 :])
                line = f"{len(done)}/{len(cells)} {cell}: {report.in_short(found)}"
                console.print(f"{line}{', ' * bool(left)}{left}", highlight=False, soft_wrap=True)
                report.write(folder, {done_cell: done[done_cell] for done_cell in cells if done_cell in done}, settings)
        report.write(folder, done, settings)
    rich.console.Console().print(report.text(done), highlight=False, markup=False)


def _is_final(found: dict) -> bool:
    """Return whether a cell need not be measured again: it was, or there is not enough memory for it."""
    return found.get("failed") in (None, OOM)


def _time_left(seconds: dict[Cell, float], waiting: list[Cell]) -> str:
    """Estimate in words the time for the waiting cells, from finished ones of the same model, or of all."""
    if not seconds or not waiting:
        return ""
    total = 0.0
    for cell in waiting:
        alike = [taken for other, taken in seconds.items() if other.model == cell.model] or list(seconds.values())
        total += sum(alike) / len(alike)
    return f"about {total / 60:.0f} min left" if total > 90 else f"about {total:.0f} s left"


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    with open(os.path.join(folder, ".lock"), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EasyScaleError(
                f"a folder must have one suite at a time. Received: --out {folder}, where one is running. "
                "Wait for it, or take another folder"
            ) from None
        yield


def _check_settings(folder: str, settings: dict) -> None:
    path = os.path.join(folder, "settings.json")
    if os.path.exists(path):
        try:
            with open(path, encoding="utf-8") as file:
                before = json.load(file)
        except ValueError:
            before = {}
        before = before if isinstance(before, dict) else {}
        different = [name for name, value in settings.items() if before.get(name) != value]
        if different:
            name = different[0]
            raise EasyScaleError(
                f"all cells of a folder must have the same settings. Received: --{name.replace('_', '-')} "
                f"{settings[name]}, and {before.get(name)} of the cells in {folder}. Take another folder"
            )
    else:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(settings, file, indent=1)
        os.replace(f"{path}.new", path)
