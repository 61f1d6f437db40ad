"""Files of checks share ranks, and a check that fails says on which rank, and where."""

import functools
from pathlib import Path

import launches
import pytest

GOOD = """
import os

def check_which_process():
    return os.getpid()
"""
FAILS = """
import easyscale

def check_before():
    pass

def check_fails():
    assert easyscale.rank() != 1, "for one rank"

def check_behind():
    easyscale.communicator.get().barrier()
"""
HANGS = """
import time
import easyscale

def check_hangs():
    if easyscale.rank() == 1:
        time.sleep(100)
"""
SHAPE = launches.Shape(2)


@pytest.fixture
def ranks():
    ranks = launches.Ranks(SHAPE)
    yield ranks
    ranks.close()
    assert not ranks.is_alive


@pytest.fixture
def checks(tmp_path):
    """A function that writes a file of checks."""

    def write(text, name="checks.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_the_next_file_has_the_same_processes(ranks, checks):
    pids = []
    for name in ("first.py", "second.py"):
        reports, _ = ranks.run(checks(GOOD, name), 30)
        assert [report["check_which_process"] for report in reports] == ["passed"] * 2
        pids.append([report["measured"]["check_which_process"] for report in reports])
    assert pids[0] == pids[1] and len({*pids[0]}) == 2


def test_a_check_that_fails_ends_them_and_is_told_with_its_rank(checks):
    outcome = functools.partial(launches._outcome, checks(FAILS), SHAPE, 30)
    outcome("check_before")
    with pytest.raises(pytest.fail.Exception, match="rank 1 of 2: (?s:.*)AssertionError: for one rank"):
        outcome("check_fails")
    with pytest.raises(pytest.fail.Exception, match="rank . of 2 did not come to check_behind"):
        outcome("check_behind")
    launches._outcome(checks(GOOD, "next.py"), SHAPE, 30, "check_which_process")  # on others


def test_a_check_that_hangs_is_told_with_its_stack(ranks, checks):
    reports, output = ranks.run(checks(HANGS), 2)
    assert reports[0]["check_hangs"] == "passed"
    assert "check_hangs" not in reports[1]
    assert "in check_hangs" in output


def test_a_check_that_is_marked_full_is_left_to_the_full_tests(checks):
    text = "from covering import full\n\ndef check_one(): pass\n\n@full\ndef check_other(): pass\n"
    params = launches.over_ranks(checks(text), sizes=[2], full=[3]).args[1]
    marked = {param.id: any(mark.name == "full" for mark in param.marks) for param in params}
    assert marked == {"one-2": False, "other-2-full": True, "one-3-full": True, "other-3-full": True}


def test_no_process_stays_behind(checks):
    ranks = launches.Ranks(SHAPE)
    reports, _ = ranks.run(checks(GOOD), 30)
    pids = [report["measured"]["check_which_process"] for report in reports]
    ranks.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
