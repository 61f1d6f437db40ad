"""Losses added by layers, kept separately for each replica's step."""

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from easyscale.backend.tensorflow.in_graph.strategy import Replicas

__all__ = ["LossesOfReplicas"]


class LossesOfReplicas(list):
    """The losses that one layer has added, for the replica whose step is being traced.

    Replicas are traced in turns, from one merge call to the next. With `BatchNormalization(synchronized=True)` a turn
    ends in the middle of the forward pass, and the start of the next replica's would clear a list shared by all.

    Args:
        strategy: The `Replicas`.
    """

    def __init__(self, strategy: Replicas):
        super().__init__()
        self._strategy = strategy
        self._of: dict[str, list] = collections.defaultdict(list)

    @property
    def _own(self) -> list:
        replica = self._strategy.replica
        return self._of["" if replica is None else str(replica.devices)]

    def extend(self, losses: Iterable) -> None:
        self._own.extend(losses)

    def clear(self) -> None:
        self._own.clear()

    def __getitem__(self, index: Any) -> Any:
        return self._own[index]

    def __iter__(self) -> Iterator:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)
