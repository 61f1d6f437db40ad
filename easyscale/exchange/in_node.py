"""The base class of exchanges whose vectors are in memory shared by the ranks of a node."""

import numpy as np

from easyscale.exchange.exchange import Exchange
from easyscale.exchange.node_memory import NodeMemory

__all__ = ["InNodeMemory"]


class InNodeMemory(Exchange):
    """An exchange with vectors in the `NodeMemory` of its communicator, if the node has several ranks."""

    def allocate(self, length: int, dtype: str | np.dtype = "float32") -> np.ndarray:
        if self.communicator.local_size == 1:
            return super().allocate(length, dtype)
        return NodeMemory.of(self.communicator).allocate(length, np.dtype(dtype))

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> np.ndarray:
        if self.communicator.local_size == 1:
            return super().lend(length, dtype)
        return NodeMemory.of(self.communicator).lend(length, np.dtype(dtype), common)

    def shrink(self) -> None:
        super().shrink()
        NodeMemory.forget(self.communicator)
