"""Numbers that depend on the batches of all workers: totals, counts."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from easyscale.step.whole_batch import COMPARED, BatchOfProcesses

__all__ = ["BatchOfWorkers"]


class BatchOfWorkers(BatchOfProcesses):
    """The batches of all workers together. See `BatchOfProcesses`."""

    def graph(self) -> None:
        return None

    def total(self, vector: torch.Tensor, fingerprint: torch.Tensor | None = None) -> torch.Tensor:
        if self.size == 1:
            return vector
        if fingerprint is not None:
            fingerprint = fingerprint.detach().to(torch.float64)
        return self._sum(vector.to(torch.float64), fingerprint).to(vector.dtype)

    def moments(self, mean: torch.Tensor, variance: torch.Tensor, count: Any) -> NoReturn:
        raise NotImplementedError("Keras has no synchronized batch normalization on torch, which alone asks for it")

    def count_samples(self, tensors: Sequence[Any]) -> float:
        return next((len(tensor) for tensor in tensors if tensor is not None and len(tensor.shape)), 1.0)

    def beginnings(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        return [tensor.reshape(-1)[:COMPARED] for tensor in tensors if isinstance(tensor, torch.Tensor)]
