"""Hydra: the mpirun of MPICH and of Intel MPI."""

from easyscale.launchers.launcher import Launcher

__all__ = ["Hydra"]


class Hydra(Launcher):
    """Hydra, detected by the variables of PMI, its interface to the MPI library."""

    name = "mpirun of MPICH or Intel MPI"
    order = 1  # srun speaks PMI, too
    rank_variable = "PMI_RANK"
    size_variable = "PMI_SIZE"
    local_rank_variable = "MPI_LOCALRANKID"
    local_size_variable = "MPI_LOCALNRANKS"
