"""Processes that benchmarks measure in turns, and the tables that they write."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from pages import replace  # noqa: E402
from turns import Group  # noqa: E402
from workloads import SETTLING, steps_of  # noqa: E402

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WORK = f"""
import os, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from turns import serve
serve(lambda seconds, fails=None: sys.exit("said at the end") if fails == os.environ["ID"] else [seconds, os.getpid()])
"""


def _group(count):
    return Group("two", [[sys.executable, "-c", WORK]] * count, environment=lambda rank: {"ID": str(rank)})


def test_all_take_a_turn_or_the_first_alone():
    with _group(2) as group:
        first, second = group.turn(seconds=1.5)
        assert first[0] == second[0] == 1.5 and first[1] != second[1]
        assert group.turn(alone=True, seconds=2) == [[2, first[1]]]


def test_a_process_that_ends_is_told_with_what_it_said():
    with pytest.raises(RuntimeError, match="two: a process ended(.|\n)*said at the end"), _group(2) as group:
        group.turn(seconds=0, fails="1")


def test_a_process_that_does_not_come_is_told():
    with pytest.raises(RuntimeError, match="broken: 0 of 1 processes came(.|\n)*not defined"):
        Group("broken", [[sys.executable, "-c", "undefined"]])


def test_steps_that_settle_do_not_count():
    assert SETTLING == 2
    assert steps_of([10.0, 15.0, 16.0, 18.0]) == [1.0, 2.0]


def test_a_table_replaces_what_stood_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x -->\nold\n<!-- end of x -->\nb\n")
    replace(page, "x", ["new", "lines"])
    assert page.read_text() == "a\n<!-- x -->\nnew\nlines\n<!-- end of x -->\nb\n"
    with pytest.raises(ValueError, match="page.md must have the marks of 'y'"):
        replace(page, "y", [])
