"""What ranks know of each other's clocks, and of what is between them. On threads."""

import time

import pytest

from easyscale.bench import links
from easyscale.communicator import clocks


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_know_by_how_much_each_clock_is_ahead_of_the_first_one(run_ranks, size):
    def on_rank(comm):
        return clocks.offsets(comm, lambda: time.monotonic() + 1000 * comm.rank)

    all_ranks = run_ranks(size, on_rank)
    assert all(found == all_ranks[0] for found in all_ranks)
    assert all_ranks[0] == pytest.approx([1000 * rank for rank in range(size)], abs=10)


def test_of_several_rounds_the_shortest_counts(run_ranks):
    """Time passes for rank 0 only: 2 s in the second round, and more in all others. The other clock stands at 107."""

    def on_rank(comm):
        times = iter([0, 50, 100, 102, 200, 290])
        return clocks.offsets(comm, (lambda: next(times)) if comm.rank == 0 else (lambda: 107.0), rounds=3)

    assert run_ranks(2, on_rank) == [[0.0, 6.0]] * 2  # 107 - (100 + 102) / 2


def test_each_two_ranks_are_measured_and_all_know_it(run_ranks):
    all_ranks = run_ranks(3, links.measure)
    assert [link.ranks for link in all_ranks[0]] == [(0, 1), (0, 2), (1, 2)]
    assert all(found == all_ranks[0] for found in all_ranks)
    assert all(link.latency > 0 and link.bandwidth > 0 for link in all_ranks[0])
