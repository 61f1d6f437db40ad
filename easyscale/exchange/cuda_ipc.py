"""Exchange between GPUs of one node: each rank reads the part that it owns from the others' GPU memory."""

from collections.abc import Callable

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange.exchange import Exchange
from easyscale.exchange.gpu_sums import GpuSums
from easyscale.exchange.gpu_windows import Windows
from easyscale.exchange.on_gpus import OnGpus
from easyscale.exchange.registry import register
from easyscale.exchange.vectors import capacity
from easyscale.gpus.memory import GpuMemory, GpuVector

__all__ = ["CudaIpc"]


class _InWindows(GpuSums):
    """Sums by ranks that read each other's GPU memory."""

    def __init__(self, communicator: Communicator, memory: GpuMemory, divide: Callable[[int], list[slice]]):
        super().__init__(communicator, memory, divide)
        self._windows = Windows.of(communicator, memory)

    def lend(self, length: int, dtype: np.dtype) -> GpuVector:
        return self._windows.lend(length, dtype, capacity)

    def _sum(self, vector: GpuVector) -> None:
        own, views = self._divide(vector.size)[self._communicator.rank], self._windows.views(vector)
        if views is None:
            return self._in_window(vector, self._sum, own)
        total = vector[own]
        for rank, view in enumerate(views):
            if rank != self._communicator.rank:
                total += view[own]
        self._windows.part()

    def _spread(self, vector: GpuVector) -> None:
        views = self._windows.views(vector)
        if views is None:
            return self._in_window(vector, self._spread, slice(None))
        for rank, (view, part) in enumerate(zip(views, self._divide(vector.size), strict=True)):
            if rank != self._communicator.rank:
                vector[part] = view[part]
        self._windows.part()

    def _in_window(self, vector: GpuVector, move: Callable[[GpuVector], None], result: slice) -> None:
        window = self.lend(vector.size, vector.dtype)
        window[...] = vector
        move(window)
        vector[result] = window[result]


@register("cuda_ipc")
class CudaIpc(OnGpus):
    """Sum vectors in place, as `shared_memory` does, in the memory of the node's GPUs.

            rank 0   [ own | ... ]      each rank reads the parts that it owns from all windows,
            rank 1   [ ... | own ]      and, to gather, the parts of all others

    With `P` ranks and a buffer of `S` bytes each rank reads `S * (P - 1) / P` bytes of the others' memory for the sum,
    and as many to gather it: over NVLink or PCIe, or within one memory if ranks share a GPU. No message is sent. Each
    of the two has two barriers, which a rank enters when its GPU has finished.

    Reference: NVIDIA, "CUDA C++ programming guide", section "Interprocess communication"; the owners follow Xu et al.,
    "Automatic cross-replica sharding of weight update in data-parallel training", 2020.
    """

    sums = _InWindows

    def connect(self, communicator: Communicator) -> Exchange:
        if nodes := len(communicator.nodes[1:]):
            raise ValueError(
                f"all ranks must be on one node for the exchange 'cuda_ipc'. Received: {nodes + 1} nodes. Use 'nccl'"
            )
        return super().connect(communicator)
