"""A rank that is killed is left out by the others."""

import sys
import time
from pathlib import Path

import pytest
from launches import environment, mpirun, run

from easyscale import exchange

LOST = Path(__file__).with_name("lost_on_ranks.py")
ELASTIC = [name for name in exchange.available() if exchange.get(name).is_elastic]

REPLACED = Path(__file__).with_name("replaced_on_ranks.py")
ADMITTED = Path(__file__).with_name("admitted_on_ranks.py")


@pytest.mark.parametrize(
    ("case", "servers"),
    [
        ("who_is_left 1", 0),
        ("who_is_left 0", 0),
        ("who_is_left 3", 0),
        ("who_decides_is_killed", 0),
        ("the_first_has_left", 0),
        ("a_server_goes_on", 1),
        *[(f"exchange_goes_on {name} {lost % 2}", 0) for lost, name in enumerate(ELASTIC)],
    ],
)
def test_the_others_go_on_without_a_rank_that_is_killed(case, servers):
    started = time.time()
    variables = environment(EASYSCALE_ELASTIC="1", EASYSCALE_SERVERS=str(servers))
    launch, *flags = mpirun(4)
    done = run([launch, "--with-ft", "ulfm", *flags, sys.executable, str(LOST), *case.split()], 60, variables)
    assert done.returncode == 0, done.stderr
    killed = [float(line.split()[-1]) for line in done.stdout.splitlines() if "killed at" in line]
    assert len(killed) == (2 if case == "who_decides_is_killed" else 1)
    assert done.stdout.count("went on at") == 4 - len(killed), done.stdout + done.stderr
    assert started < killed[0]
    assert "Traceback" not in done.stderr, done.stderr


def _run_with_spares(size, spares, limit, *script):
    variables = environment(EASYSCALE_ELASTIC="1", EASYSCALE_SPARES=str(spares))
    launch, *flags = mpirun(size)
    ranks = [*flags, "--with-ft", "ulfm", sys.executable, *script]
    standby = [":", "-n", str(spares), sys.executable, "-m", "easyscale.elastic.standby", *script]
    done = run([launch, *ranks, *standby], limit, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if "end of rank" in line]


@pytest.mark.full
def test_ranks_that_are_killed_at_any_time_are_replaced():
    losses = 6
    ends = _run_with_spares(4, 40, 130, str(REPLACED), str(losses))
    ends = [line.partition("after ")[2].split() for line in ends]
    assert ends and len({rounds for rounds, *_ in ends}) == 1, ends
    assert max(int(end[2]) for end in ends) >= losses


@pytest.mark.parametrize("told", ["others", "newcomer", "nobody"])
def test_the_chief_dies_as_it_takes_in_a_newcomer(told, tmp_path):
    ends = _run_with_spares(3, 6, 60, str(ADMITTED), told, str(tmp_path))
    assert sorted(line.split()[3 + line.startswith("[")] for line in ends) == ["0", "1", "2"], ends
