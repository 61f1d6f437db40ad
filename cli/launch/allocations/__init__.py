"""What a cluster's scheduler has given to this job: which hosts, and how many ranks each is to run.

slurm        a batch script, or a shell, of Slurm's
kubernetes   the launcher of an MPIJob or a TrainJob of Kubeflow's

A new one is a new file in this folder, with a subclass of `Allocation`; nothing else names it.
"""

import os
from collections.abc import Mapping

from easyscale.cli.launch.allocations.allocation import Allocation
from easyscale.discovery import kinds_in

__all__ = ["Allocation", "find"]


def find(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """Return the allocation in which this process runs; `None` if there is none."""
    found = (kind.detect(environment) for kind in kinds_in(__name__, Allocation))
    return next(filter(None, found), None)
