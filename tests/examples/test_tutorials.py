"""Tutorials run, print what stands in them, and draw their pictures."""

import re
import sys
from pathlib import Path

import pytest
from launches import run

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
SHORT = {"which_exchange"}
# Those that print counts, the same each time. Of the others digits differ.
EXACT = {"which_exchange", "write_an_exchange"}


def _expected(script):
    """The lines that a tutorial says it prints."""
    blocks = re.findall(r"^# ```output\n(.*?)^# ```$", script.read_text(), re.MULTILINE | re.DOTALL)
    return [line.removeprefix("# ") for block in blocks for line in block.splitlines()]


def _compared(lines, script):
    if script.stem in EXACT:
        return lines
    return [re.sub(r"-?\d[\d.,]*(e-?\d+)?", "#", line) for line in lines]


@pytest.mark.parametrize(
    "script",
    [pytest.param(script, id=script.stem, marks=[pytest.mark.full] * (script.stem not in SHORT)) for script in SCRIPTS],
)
def test_a_tutorial_prints_what_it_says_and_draws_its_pictures(script, tmp_path):
    done = run(["env", "-C", str(tmp_path), "MPLBACKEND=Agg", sys.executable, str(script)], timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _compared(done.stdout.splitlines(), script) == _compared(_expected(script), script), done.stderr
    pictures = re.findall(r'savefig\("([\w.]+)"\)', script.read_text())
    assert pictures
    for name in pictures:
        for folder in (tmp_path, ROOT / "docs" / "tutorials"):
            assert (folder / name).read_text().rstrip().endswith("</svg>")
