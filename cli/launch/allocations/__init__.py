"""Allocations: the hosts that a cluster's scheduler assigned to this job, and the number of ranks on each.

slurm        a Slurm batch script, or a shell started by `salloc`
kubernetes   the launcher of a Kubeflow MPIJob or TrainJob

To add one, add a file to this folder with a subclass of `Allocation`; nothing else refers to it.
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
