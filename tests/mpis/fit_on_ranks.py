"""P workers take the steps of one process over any MPI: the fewest checks that show it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from models import dense, equal, sgd  # noqa: E402


def check_a_fit_with_ring_and_one_with_shared_memory():
    equal(dense(sgd), exchanges=["ring", "shared_memory"])
