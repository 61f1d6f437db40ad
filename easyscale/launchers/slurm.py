"""Slurm's srun. `SLURM_NTASKS` is not read: it is set for the whole job, even if srun has started nothing in it."""

from easyscale.launchers.launcher import Launcher

__all__ = ["Slurm"]


class Slurm(Launcher):
    """A step of a Slurm job."""

    name = "srun"
    order = 2
    rank_variable = "SLURM_PROCID"
    size_variable = "SLURM_STEP_NUM_TASKS"
    local_rank_variable = "SLURM_LOCALID"
