"""The ranks that compute on each GPU."""

from easyscale.communicator import Communicator
from easyscale.gpus.memory import GpuMemory

__all__ = ["gpus_of"]


def gpus_of(communicator: Communicator, memory: GpuMemory) -> dict[tuple[str, str], list[int]]:
    """Return, by host and GPU, the ranks that compute there. Collective: all ranks call this."""
    gpus: dict[tuple[str, str], list[int]] = {}
    for rank, (host, gpu) in enumerate(communicator.all_gather_object([communicator.host, memory.identity()])):
        gpus.setdefault((host, gpu), []).append(rank)
    return gpus
