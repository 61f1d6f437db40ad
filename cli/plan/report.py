"""The report of `easyscale plan`: a table, the crossovers, a JSON file, a plot."""

import itertools
from typing import TYPE_CHECKING

from easyscale.cli import reports
from easyscale.cli.plan.forms import FormPlan
from easyscale.cli.plan.model import ALONE, Step, fastest
from easyscale.cli.reports import speedups
from easyscale.quantities import bytes_text, millis_text

if TYPE_CHECKING:
    import rich.table

__all__ = ["check_table", "forms_table", "lines_of_crossovers", "plot", "record", "table"]


def table(steps: list[Step], title: str) -> "rich.table.Table":
    """Return a table of planned steps; the fastest for each number of ranks is marked."""
    sections = [[*group] for _, group in itertools.groupby(steps, lambda step: step.ranks)]
    return reports.table(
        title,
        ["ranks", "exchange:", "step ms", "exchange", "hidden", "speed-up", "efficiency"],
        ([_cells(step, is_best=step.ranks > 1 and step is fastest(steps, step.ranks)) for step in of_size]
         for of_size in sections),
        "step: compute + waiting + exchange - hidden; * the fastest",
    )  # fmt: skip


def lines_of_crossovers(changes: list[tuple[int, str]], by_size: dict[int, int | None]) -> list[str]:
    """Describe from which number of ranks each exchange is the fastest, and when ring beats tree."""
    lines = [f"fastest from {ranks} ranks on: {name}" for ranks, name in changes]
    for ranks, nbytes in by_size.items():
        if nbytes is not None:
            lines.append(f"{ranks} ranks: ring faster than tree for vectors above {_bytes(nbytes)}")
    return lines


def check_table(rows: list[dict]) -> "rich.table.Table":
    """Return a table of the errors of `predicted` relative to the measured `median`, both in seconds."""
    found = []
    for name, ranks in dict.fromkeys((row["exchange"], row["ranks"]) for row in rows):
        own = [row for row in rows if (row["exchange"], row["ranks"]) == (name, ranks)]
        errors = {row["bytes"]: row["predicted"] / row["median"] - 1 for row in own}
        worst = max(errors, key=lambda nbytes: abs(errors[nbytes]))
        mean = sum(map(abs, errors.values())) / len(errors)
        found.append([name, str(ranks), str(len(own)), f"{mean:.0%}", f"{errors[worst]:+.0%}", bytes_text(worst)])
    title = "each size beside what the other sizes say"
    return reports.table(title, ["exchange:", "ranks", "sizes", "mean error", "largest error", "at"], [found])


def forms_table(planned: list[FormPlan]) -> "rich.table.Table":
    """Return a table of planned steps with codecs, and the bandwidths below which they pay."""
    sections = [[*group] for _, group in itertools.groupby(planned, lambda row: row.ranks)]
    return reports.table(
        "gradients in another form, packed as fast as on this machine",
        ["ranks", "exchange:", "form:", "sent", "packing ms", "step ms", "faster", "pays below"],
        ([_form_cells(row) for row in of_size] for of_size in sections),
        "faster: than without a form; pays below: of a link. Nothing is sent where a row is missing",
    )


def _form_cells(row: FormPlan) -> list[str]:
    below = f"{row.pays_below * 8 / 1e9:.3g} Gbit/s" if row.pays_below else "never"
    times = map(millis_text, (row.packing, row.seconds))
    return [str(row.ranks), row.exchange, row.form, _bytes(round(row.bytes)), *times, f"{row.faster:.2f}", below]


def record(
    inputs: dict, steps: list[Step], changes: list, by_size: dict, checked: list[dict], of_forms: list[FormPlan]
) -> dict:
    """Return the whole plan, for a JSON file."""
    return {
        "plan": inputs,
        "steps": [step._asdict() for step in steps],
        "fastest_from": [{"ranks": ranks, "exchange": name} for ranks, name in changes],
        "ring_beats_tree_above_bytes": {str(ranks): nbytes for ranks, nbytes in by_size.items()},
        "checked": checked,
        "forms": [row._asdict() for row in of_forms],
    }


def plot(path: str, steps: list[Step], title: str) -> None:
    """Plot speed-up and efficiency against ranks, one line per exchange."""
    names = dict.fromkeys(step.exchange for step in steps if step.exchange != ALONE)
    lines = [(name, "-", [step._asdict() for step in steps if step.exchange == name]) for name in names]
    reports.plot(path, title.replace("\n", " · "), speedups("log"), "ranks", lines)


def _cells(step: Step, is_best: bool) -> list[str]:
    return [
        str(step.ranks),
        step.exchange + " *" * is_best,
        *map(millis_text, (step.seconds, step.exchange_seconds, step.hidden)),
        f"{step.speedup:,.1f}",
        f"{step.efficiency:.0%}",
    ]


def _bytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3g} MB" if nbytes >= 10**6 else f"{nbytes / 1e3:.3g} KB"
