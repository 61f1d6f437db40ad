"""Measure how far P processes end from one, in each case of the tests, and write the table of docs/equivalence.md.

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
PAGE = ROOT / "docs" / "equivalence.md"
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
    """The cases as a table in Markdown, in the order and under the headings of the files of checks."""
    lines = [f"| | {' | '.join(measured)} |", f"|---|{'---|' * len(measured)}"]
    for file in FILES:
        lines += _rows(file.read_text(), measured)
    return "\n".join(lines)


def _rows(source: str, measured: dict[str, dict[str, float]]) -> list[str]:
    lines = []
    headings = {
        source[: heading.start()].count("\n") + 1: heading[1] for heading in re.finditer(r"^# (.*)$", source, re.M)
    }
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
            for line in [line for line in headings if line < node.lineno]:
                lines.append(f"| **{headings.pop(line)}** |{' |' * len(measured)}")
            name = node.name.removeprefix("check_").replace("_", " ")
            values = [
                "" if (difference := of[node.name]) is None else f"{difference:.1e}" if difference else "0"
                for of in measured.values()
            ]
            lines.append(f"| {name} | {' | '.join(values)} |")
    return lines


def main() -> None:
    measured = {name: measure(*arguments) for name, arguments in COLUMNS.items()}
    replace(PAGE, "table", table(measured).splitlines())


if __name__ == "__main__":
    main()
