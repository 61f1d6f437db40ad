"""Numbers that depend on the batches of all workers: totals, counts."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from easyscale.step.batch_of_processes import COMPARED, BatchOfProcesses

__all__ = ["BatchOfWorkers"]


class BatchOfWorkers(BatchOfProcesses):
    """The batches of all workers together. See `BatchOfProcesses`."""

    def graph(self) -> None:
        return None

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        return vector if self.size == 1 else self._sum(vector.to(torch.float64)).to(vector.dtype)

    def moments(self, mean: torch.Tensor, variance: torch.Tensor, count: Any) -> NoReturn:
        raise NotImplementedError("Keras has no synchronized batch normalization on torch, which alone asks for it")

    def count_samples(self, tensors: Sequence[Any]) -> float:
        return next((len(one) for one in tensors if one is not None and len(one.shape)), 1.0)

    def beginnings(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        return [one.reshape(-1)[:COMPARED] for one in tensors if isinstance(one, torch.Tensor)]
