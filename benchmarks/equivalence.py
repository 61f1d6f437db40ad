"""Measure how far P processes end from one, in each case of the tests, and write the table of docs/equivalence.md.

    python benchmarks/equivalence.py

It runs tests/training/equality_on_ranks.py on 1 to 4 processes, which takes some minutes.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import launches  # noqa: E402
from pages import replace  # noqa: E402

CHECKS = ROOT / "tests" / "training" / "equality_on_ranks.py"
PAGE = ROOT / "docs" / "equivalence.md"
SIZES = [1, 2, 3, 4]
LIMIT = 1200  # seconds for one number of processes


def measure(size: int) -> dict[str, float]:
    """Run the checks on `size` processes; return the largest difference of a weight for each."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*launches.mpirun(size), sys.executable, str(ROOT / "tests" / "run_checks.py"), str(CHECKS)]
        done = subprocess.run([*command, folder, str(LIMIT)], env=launches.environment(), timeout=LIMIT + 60)
        if done.returncode:
            sys.exit(f"the checks must pass on {size} processes. Received: exit code {done.returncode}. Run the tests")
        return json.loads(Path(folder, "0.json").read_text())["measured"]


def table(measured: dict[int, dict[str, float]]) -> str:
    """The cases as a table in Markdown, in the order and under the headings of the file of checks."""
    lines = [
        f"| | {' | '.join(f'P = {size}' for size in measured)} |",
        f"|---|{'---|' * len(measured)}",
    ]
    source = CHECKS.read_text()
    headings = {source[: one.start()].count("\n") + 1: one[1] for one in re.finditer(r"^# (.*)$", source, re.M)}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
            for line in [line for line in headings if line < node.lineno]:
                lines.append(f"| **{headings.pop(line)}** |{' |' * len(measured)}")
            name = node.name.removeprefix("check_").replace("_", " ")
            values = [f"{one[node.name]:.1e}" if one[node.name] else "0" for one in measured.values()]
            lines.append(f"| {name} | {' | '.join(values)} |")
    return "\n".join(lines)


def main() -> None:
    measured = {size: measure(size) for size in SIZES}
    replace(PAGE, "table", table(measured).splitlines())


if __name__ == "__main__":
    main()
