"""Optimizer states that differ between workers: all of them, and their mean."""

from collections.abc import Sequence

import keras
import numpy as np

from easyscale.backend import view_of
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.exchange.on_gpus import for_host
from easyscale.layout.bucket import lend, plan
from easyscale.layout.specs import Spec, specs_of
from easyscale.optimizers.nested import all_variables
from easyscale.step.gradients import Gradients
from easyscale.step.rows_of_ranks import collect_rows

__all__ = ["StatesOfWorkers"]


class StatesOfWorkers:
    """The variables of an optimizer on all workers, each with its own values.

    Args:
        optimizer: The optimizer. It is built.
        replication: `Gradients`.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, replication: Gradients):
        self._optimizer, self._replication = optimizer, replication

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables of this worker."""
        return all_variables(self._optimizer)

    def means(self) -> list[np.ndarray]:
        """Return the mean of each variable over workers, for counters the maximum. All must call this."""
        communicator, exchange = self._replication.communicator, for_host(self._replication.exchange)
        values = [np.array(view_of(variable)) for variable in self.variables]
        scalars = [index for index, value in enumerate(values) if value.ndim == 0 or not _is_float(value.dtype)]
        by_rank = zip(*communicator.all_gather_object([values[index].tolist() for index in scalars]), strict=True)
        for index, own in zip(scalars, by_rank, strict=True):
            values[index] = _scalar_of(np.array(own), values[index].dtype)
        large = [index for index in range(len(values)) if index not in scalars]
        buckets = plan([Spec(values[index].shape, _wide(values[index].dtype)) for index in large])
        for bucket, vector in zip(buckets, lend(buckets, exchange), strict=True):
            vector[:] = 0
            bucket.pack(
                {position: values[index] for position, index in enumerate(large)}, vector, 1 / communicator.size
            )
            exchange.allreduce(vector)
            for position, mean in bucket.unpack(vector).items():
                values[large[position]] = mean.astype(values[large[position]].dtype)
        return values

    def specs(self, count: int) -> list[Spec]:
        """Return shape and dtype of each array for which `collect` uses the given memory.

        Args:
            count: Int. The number of workers if each has its own; 1 if all have the same.
        """
        return [Spec((count, *shape), dtype) for shape, dtype in specs_of(self.variables)]

    def collect(self, count: int, memory: SnapshotMemory) -> list[np.ndarray]:
        """Return, on the chief, the values of all workers, stacked. All must call this.

        Args:
            count: Int. See `specs`.
            memory: `SnapshotMemory`. The memory for the values.
        """
        communicator = self._replication.communicator
        values = [view_of(variable) for variable in self.variables]
        if count > 1:
            rows = [collect_rows(communicator, value, memory) for value in values]
            return [found for found in rows if found is not None]
        return [memory.copy(value[None]) for value in values] if communicator.is_chief else []

    def load(self, all_rows: Sequence[np.ndarray]) -> None:
        """Set the result of `collect`: the worker's own or, from another number of workers, the mean."""
        communicator = self._replication.communicator
        for variable, rows in zip(self.variables, all_rows, strict=True):
            if len(rows) in (1, communicator.size):
                value = rows[communicator.rank % len(rows)]
            else:
                is_count = not _is_float(rows.dtype)
                value = rows.max(axis=0) if is_count else rows.mean(axis=0, dtype=_wide(rows.dtype)).astype(rows.dtype)
            variable.assign(value)


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind not in "biu"


def _wide(dtype: np.dtype) -> np.dtype:
    return np.promote_types(dtype, "float32")


def _scalar_of(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Combine all workers' numbers into one: their common value, their mean, or the largest count."""
    whole = values.max(axis=0) if not _is_float(dtype) else values.mean(axis=0)
    return np.array(np.where((values == values[0]).all(axis=0), values[0], whole), dtype)
