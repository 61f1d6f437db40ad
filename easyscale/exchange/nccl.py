"""GPUs, one for each rank, by NVIDIA's library."""

from collections.abc import Callable

from easyscale.communicator import Communicator
from easyscale.exchange.gpu_sums import GpuSums
from easyscale.exchange.on_gpus import OnGpus
from easyscale.exchange.registry import register
from easyscale.gpus.memory import GpuMemory, GpuVector, Library
from easyscale.gpus.ranks import gpus_of

__all__ = ["Nccl"]


class _ByLibrary(GpuSums):
    """The library sums, one part for each rank."""

    def __init__(self, communicator: Communicator, memory: GpuMemory, divide: Callable[[int], list[slice]]):
        super().__init__(communicator, memory, divide)
        known = vars(communicator)  # it goes when the communicator goes
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
    """Leave the work to NCCL: each rank's part is a reduction to it, and a broadcast from it, all begun in one group.

    The library takes rings or trees, over NVLink, PCIe, or the network: about `2 * S * (P - 1) / P` bytes for each of
    `P` ranks and a buffer of `S` bytes. It is begun and not waited for. Each rank needs a GPU of its own.

    Reference: NVIDIA, "NVIDIA Collective Communication Library (NCCL) documentation".
    """

    sums = _ByLibrary
