"""What `easyscale plan` shows: a table, the crossovers, a JSON file, a plot."""

import json
from typing import TYPE_CHECKING

from easyscale.cli import sizes
from easyscale.cli.plan.model import ALONE, Step, fastest

if TYPE_CHECKING:
    import rich.table

__all__ = ["check_table", "lines_of_crossovers", "plot", "table", "write"]


def table(steps: list[Step], title: str) -> "rich.table.Table":
    """Return a table of planned steps; the fastest of each number of ranks is marked."""
    import rich.box
    import rich.table

    made = rich.table.Table(
        title=title,
        caption="step: compute + waiting + exchange - hidden; * the fastest",
        box=rich.box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    made.add_column("ranks", justify="right", no_wrap=True)
    made.add_column("exchange", no_wrap=True)
    for name in ("step ms", "exchange", "hidden", "speed-up", "efficiency"):
        made.add_column(name, justify="right", no_wrap=True)
    for number, step in enumerate(steps):
        best = step.ranks > 1 and step is fastest(steps, step.ranks)
        made.add_row(
            str(step.ranks),
            step.exchange + " *" * best,
            _ms(step.seconds),
            _ms(step.exchange_seconds),
            _ms(step.hidden),
            f"{step.speedup:,.1f}",
            f"{step.efficiency:.0%}",
            end_section=number + 1 == len(steps) or steps[number + 1].ranks != step.ranks,
        )
    return made


def lines_of_crossovers(changes: list[tuple[int, str]], by_size: dict[int, int | None]) -> list[str]:
    """Return in words which exchange is the fastest from which number of ranks on, and ring beside tree."""
    lines = [f"fastest from {ranks} ranks on: {name}" for ranks, name in changes]
    for ranks, nbytes in by_size.items():
        if nbytes is not None:
            lines.append(f"{ranks} ranks: ring faster than tree for vectors above {_bytes(nbytes)}")
    return lines


def check_table(rows: list[dict]) -> "rich.table.Table":
    """Return a table of what was measured beside what other sizes say: `predicted` and `median` in seconds."""
    import rich.box
    import rich.table

    made = rich.table.Table(title="each size beside what the other sizes say", box=rich.box.SIMPLE_HEAD)
    made.add_column("exchange", no_wrap=True)
    for name in ("ranks", "sizes", "mean error", "largest error", "at"):
        made.add_column(name, justify="right")
    for name, ranks in dict.fromkeys((row["exchange"], row["ranks"]) for row in rows):
        own = [row for row in rows if (row["exchange"], row["ranks"]) == (name, ranks)]
        errors = {row["bytes"]: row["predicted"] / row["median"] - 1 for row in own}
        worst = max(errors, key=lambda nbytes: abs(errors[nbytes]))
        mean = sum(map(abs, errors.values())) / len(errors)
        made.add_row(name, str(ranks), str(len(own)), f"{mean:.0%}", f"{errors[worst]:+.0%}", sizes.text(worst))
    return made


def write(path: str, inputs: dict, steps: list[Step], changes: list, by_size: dict, checked: list[dict]) -> None:
    """Write everything as JSON."""
    found = {
        "plan": inputs,
        "steps": [step._asdict() for step in steps],
        "fastest_from": [{"ranks": ranks, "exchange": name} for ranks, name in changes],
        "ring_beats_tree_above_bytes": {str(ranks): nbytes for ranks, nbytes in by_size.items()},
        "checked": checked,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


def plot(path: str, steps: list[Step], title: str) -> None:
    """Draw speed-up and efficiency over ranks, a line for each exchange."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    speedups, efficiencies = figure.subplots(1, 2)
    for name in dict.fromkeys(step.exchange for step in steps if step.exchange != ALONE):
        own = [step for step in steps if step.exchange == name]
        at = [step.ranks for step in own]
        speedups.plot(at, [step.speedup for step in own], marker="o", label=name)
        efficiencies.plot(at, [100 * step.efficiency for step in own], marker="o", label=name)
    ticks = sorted({step.ranks for step in steps})
    speedups.plot(ticks, ticks, ":", color="gray", label="as many times as ranks")
    speedups.set(title="speed-up", yscale="log")
    efficiencies.set(title="efficiency, %", ylim=(0, 105))
    for axes in (speedups, efficiencies):
        axes.set(xscale="log", xlabel="ranks")
        axes.set_xticks(ticks, ticks)
        axes.minorticks_off()
        axes.grid(True, alpha=0.3)
    speedups.legend()
    figure.suptitle(title.replace("\n", " · "), fontsize=9)
    figure.savefig(path, dpi=120)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}" if seconds >= 1e-4 or seconds == 0 else f"{1e3 * seconds:.3f}"


def _bytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3g} MB" if nbytes >= 10**6 else f"{nbytes / 1e3:.3g} KB"
