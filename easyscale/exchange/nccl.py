"""Exchange between GPUs, one for each rank, by NVIDIA's library."""

from collections.abc import Callable

from easyscale.communicator import Communicator
from easyscale.exchange.gpu_sums import GpuSums
from easyscale.exchange.on_gpus import OnGpus
from easyscale.exchange.registry import register
from easyscale.gpus.memory import GpuMemory, GpuVector, Library
from easyscale.gpus.ranks import gpus_of

__all__ = ["Nccl"]


class _ByLibrary(GpuSums):
    """Sums by the library, one part for each rank."""

    def __init__(self, communicator: Communicator, memory: GpuMemory, divide: Callable[[int], list[slice]]):
        super().__init__(communicator, memory, divide)
        known = vars(communicator)  # it lives as long as the communicator
        if "_nccl" not in known:
            shared = next((ranks for ranks in gpus_of(communicator, memory).values() if len(ranks) > 1), None)
            problem = memory.why_no_library()
            if any(communicator.all_gather_object(problem)):
                raise ValueError(
                    f"all ranks need NVIDIA's library for the exchange 'nccl'. Received: {problem or 'one without it'}"
                )
            if shared:
                raise ValueError(
                    f"each rank needs a GPU of its own for the exchange 'nccl'. Received: one for the ranks {shared}. "
                    "Use 'cuda_ipc'"
                )
            known["_nccl"] = memory.library(communicator)
        self._library: Library = known["_nccl"]

    def _sum(self, vector: GpuVector) -> None:
        self._library.reduce([vector[part] for part in self._divide(vector.size)])

    def _spread(self, vector: GpuVector) -> None:
        self._library.gather([vector[part] for part in self._divide(vector.size)])


@register("nccl")
class Nccl(OnGpus):
    """Leave the work to NCCL: for each part a reduction to its owner, and a broadcast from it, launched as a group.

    The library uses rings or trees, over NVLink, PCIe, or the network: about `2 * S * (P - 1) / P` bytes for each of
    `P` ranks and a buffer of `S` bytes. It is launched asynchronously. Each rank needs its own GPU.

    Reference: NVIDIA, "NVIDIA Collective Communication Library (NCCL) documentation".
    """

    sums = _ByLibrary
