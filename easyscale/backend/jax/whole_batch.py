"""Numbers that depend on the batches of all workers: totals, counts."""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.experimental.sparse import JAXSparse

from easyscale.step.whole_batch import COMPARED, BatchOfProcesses

__all__ = ["BatchOfWorkers"]


class BatchOfWorkers(BatchOfProcesses):
    """The batches of all workers together. See `BatchOfProcesses`."""

    def graph(self) -> Any:
        """Return the function that JAX is tracing, or one nested in it, such as a loop's; `None` if it traces none."""
        return getattr(jnp.zeros(()), "_trace", None)

    def total(self, vector: Any, fingerprint: Any = None) -> Any:
        return vector if self.size == 1 else jnp.asarray(self._sum(vector, fingerprint), vector.dtype)

    def moments(self, mean: Any, variance: Any, count: Any) -> NoReturn:
        raise NotImplementedError("Keras has no synchronized batch normalization on JAX, which alone asks for it")

    def count_samples(self, tensors: Sequence[Any]) -> float:
        return float(next((tensor.shape[0] for tensor in tensors if getattr(tensor, "ndim", 0)), 1.0))

    def beginnings(self, tensors: Sequence[Any]) -> list[jax.Array]:
        values = [tensor.data if isinstance(tensor, JAXSparse) else tensor for tensor in tensors]
        arrays = [jnp.asarray(value) for value in values if value is not None]
        return [jnp.reshape(array, -1)[:COMPARED] for array in arrays if array.dtype.kind in "biuf"]
