"""Numbers that depend on the batches of all workers: totals, counts."""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np

from easyscale.backend.jax import questions
from easyscale.step.whole_batch import COMPARED, BatchOfProcesses

__all__ = ["BatchOfWorkers"]


class BatchOfWorkers(BatchOfProcesses):
    """The batches of all workers together. See `BatchOfProcesses`."""

    def graph(self) -> None:
        return None

    def total(self, vector: Any, fingerprint: Any = None) -> Any:
        return vector if self.size == 1 else questions.ask(vector, fingerprint, self._total)

    def _total(self, vector: Any, fingerprint: Any) -> Any:
        mark = None if fingerprint is None else np.asarray(fingerprint, "float64")
        return jnp.asarray(self._sum(np.asarray(vector, "float64"), mark), vector.dtype)

    def moments(self, mean: Any, variance: Any, count: Any) -> NoReturn:
        raise NotImplementedError("Keras has no synchronized batch normalization on JAX, which alone asks for it")

    def count_samples(self, tensors: Sequence[Any]) -> float:
        return float(next((len(tensor) for tensor in tensors if tensor is not None and np.ndim(tensor)), 1.0))

    def beginnings(self, tensors: Sequence[Any]) -> list[np.ndarray]:
        arrays = [np.asarray(tensor) for tensor in tensors if tensor is not None]
        return [array.reshape(-1)[:COMPARED] for array in arrays if array.dtype.kind in "biuf"]
