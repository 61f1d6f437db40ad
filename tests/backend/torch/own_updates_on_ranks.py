"""Updates in which workers step alone, with what JAX does not have."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "update"))

from local_on_ranks import (  # noqa: E402
    check_a_step_past_the_optimizer_is_an_error,
    check_loss_scaling_is_each_workers_own,
)

__all__ = [
    "check_a_step_past_the_optimizer_is_an_error",
    "check_loss_scaling_is_each_workers_own",
]
