"""Tests of the table of test durations."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from durations import durations  # noqa: E402

LOG = """
[gw0] [ 10%] PASSED tests/a/test_one.py::test_x[1]@group
[gw1] [ 20%] PASSED tests/a/test_one.py::test_y
[gw1] [ 30%] FAILED tests/test_two.py::test_z
============ slowest durations ============
12.50s call     tests/a/test_one.py::test_x[1]@group
3.00s setup    tests/test_two.py::test_z
0.50s call     tests/a/test_one.py::test_y
"""


def test_seconds_and_tests_of_each_file_are_added_up():
    assert durations(LOG) == {
        "tests/a/test_one.py": {"seconds": 13, "tests": 2, "longest": 12.5},
        "tests/test_two.py": {"seconds": 3, "tests": 1, "longest": 3.0},
    }
