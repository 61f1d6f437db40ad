"""Which tests run which lines, as `coverage` has recorded it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import coverage

__all__ = ["record", "tests_of_lines"]

ROOT = Path(__file__).parents[2]
_CONFIG = """
[run]
parallel = true
sigterm = true
source_pkgs = easyscale
data_file = {folder}/data
context = ${{PYTEST_CURRENT_TEST-nothing}}
"""


def record(folder: Path, commands: list[tuple[dict[str, str], list[str]]]) -> None:
    """Run tests, and record in a folder which lines each of them runs, in whatever processes.

    Args:
        folder: Path. It is made.
        commands: What runs tests: what each has in its environment beside this one's, and the command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config"
    config.write_text(_CONFIG.format(folder=folder))
    for variables, command in commands:
        env = {**os.environ, **variables, "COVERAGE_PROCESS_START": str(config)}
        env["PYTHONPATH"] = str(ROOT / "tests" / "startup")
        subprocess.run(command, env=env, cwd=ROOT, check=False)
    subprocess.run([sys.executable, "-m", "coverage", "combine", "--quiet", f"--rcfile={config}"], check=True)


def tests_of_lines(folder: Path, path: str) -> dict[int, set[str]]:
    """Return the ids of the tests that run each line of a file.

    Args:
        folder: Path. What `record` has filled.
        path: String. The file, from the root of the repository.
    """
    data = coverage.CoverageData(str(folder / "data"))
    data.read()
    lines: dict[int, set[str]] = {}
    for name in data.measured_files():
        if name.endswith(f"/{path}"):
            for line, contexts in data.contexts_by_lineno(name).items():
                found = {_id(context) for context in contexts} - {"", "nothing"}
                lines.setdefault(line, set()).update(found)
    return lines


def _id(context: str) -> str:
    """Return the id of a test, without the group that pytest-xdist writes behind it."""
    return re.sub(r"@[^@\]]*$", "", context.rpartition("|")[2].partition(" (")[0])
