"""Processes that a rank starts are no ranks."""

import sys

from launches import run

SCRIPT = """
import multiprocessing, sys
import easyscale
size = easyscale.size()

def square(number):
    return number * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(size, pool.map(square, [1, 2, 3]))
"""


def test_spawned_processes_of_a_rank_are_workers_of_their_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run([sys.executable, "-m", "easyscale", "launch", "-n", "2", str(script)], timeout=60)
    assert sorted(done.stdout.splitlines()) == ["2 [1, 4, 9]", "[1] 2 [1, 4, 9]"], done.stderr
