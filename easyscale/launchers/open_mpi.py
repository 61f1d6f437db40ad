"""Open MPI's mpirun, which Kubernetes MPI jobs use, too."""

from easyscale.launchers.launcher import Launcher

__all__ = ["OpenMpi"]


class OpenMpi(Launcher):
    """Open MPI, any version."""

    name = "mpirun of Open MPI"
    order = 0
    rank_variable = "OMPI_COMM_WORLD_RANK"
    size_variable = "OMPI_COMM_WORLD_SIZE"
    local_rank_variable = "OMPI_COMM_WORLD_LOCAL_RANK"
    local_size_variable = "OMPI_COMM_WORLD_LOCAL_SIZE"
