"""Measure how far P processes end from one, in each case of the tests, and write the table of docs/checked.md.

    python benchmarks/equivalence.py

It runs the files of checks in tests/training on 1 to 4 processes, and on 2 devices of one and of two: half an hour.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import launches  # noqa: E402
from pages import replace  # noqa: E402

CHECKS = ROOT / "tests" / "training"
FILES = [CHECKS / f"equality{of}_on_ranks.py" for of in ("", "_of_optimizers", "_of_models", "_of_generators")]
IN_GRAPH = FILES[:3]
PAGE = ROOT / "docs" / "checked.md"
COLUMNS = {"P = 1": (1, 0), "P = 2": (2, 0), "P = 3": (3, 0), "P = 4": (4, 0), "2 devices": (1, 2), "2 x 2": (2, 2)}
LIMIT = 1200  # seconds for one file and column


def measure(size: int, devices: int) -> dict[str, float]:
    """Run the checks on `size` processes; return the largest difference of a weight for each."""
    measured, ranks = {}, launches.Ranks(launches.Shape(size, devices=devices, is_full=True))
    try:
        for file in IN_GRAPH if devices else FILES:
            (report, *_), output = ranks.run(file, LIMIT)
            if not report.get("ended"):
                sys.exit(f"the checks must pass on {size} processes. Received: {output[-3000:]}. Run the tests")
            measured |= report["measured"]
    finally:
        ranks.close()
    return measured


def table(measured: dict[str, dict[str, float]]) -> str:
    """The largest difference in each group of cases as a table in Markdown, in the order of the files of checks."""
    lines = [f"| cases | number | {' | '.join(measured)} |", f"|---|---|{'---|' * len(measured)}"]
    groups: dict[str, list[str]] = {}
    for file in FILES:
        for heading, checks in _groups(file.read_text()).items():
            groups.setdefault(heading, []).extend(checks)
    for heading, checks in groups.items():
        cells = []
        for of in measured.values():
            found = [difference for check in checks if (difference := of.get(check)) is not None]
            cells.append(f"{max(found):.1e}" if found else "")
        lines.append(f"| {heading} | {len(checks)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _groups(source: str) -> dict[str, list[str]]:
    """Return the names of the checks in a file, by the heading above them: a comment at the start of a line."""
    headings = {
        source[: heading.start()].count("\n") + 1: heading[1] for heading in re.finditer(r"^# (.*)$", source, re.M)
    }
    groups: dict[str, list[str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
            heading = next((text for line, text in reversed(headings.items()) if line < node.lineno), "Others")
            groups.setdefault(heading, []).append(node.name)
    return groups


def main() -> None:
    measured = {name: measure(*arguments) for name, arguments in COLUMNS.items()}
    replace(PAGE, "table", table(measured).splitlines())


if __name__ == "__main__":
    main()
