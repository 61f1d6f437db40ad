"""The parts of data that workers predict, and the predictions of all of them in the order of the data.

Samples of arrays are dealt one by one, as in training. Of what makes batches each worker predicts every size-th batch
as it is, so batches may differ in size, and may be smaller than the number of workers.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from easyscale import called
from easyscale.auto.data import are_arrays, are_same
from easyscale.communicator import Communicator
from easyscale.data import arrays, division, keras_dataset, shard, tf_dataset

__all__ = ["Dealt", "deal"]


class Dealt:
    """This worker's part of data.

    Args:
        communicator: The `Communicator`.

    Attributes:
        x: What Keras predicts.
        steps: Int. How many batches it has, for the progress bar; `None` if Keras knows, or nobody does.
    """

    x: Any
    steps: int | None = None

    def __init__(self, communicator: Communicator):
        self._communicator = communicator

    @property
    def _size(self) -> int:
        return self._communicator.workers

    @property
    def _rank(self) -> int:
        return self._communicator.rank % self._communicator.workers

    def blocks(self) -> list[tuple[int, int]]:
        """Return the number of each block of samples that this worker has predicted, and how many samples it has."""
        raise NotImplementedError

    def join(self, predictions: Any) -> Any | None:
        """Return all workers' predictions in the order of the data, or `None` if they do not tell which is whose.

        Each sample has as many rows as others, which are numbers.

        All workers call this together.
        """
        own = self.blocks()
        samples = sum(count for _, count in own)
        leaves = [np.asarray(leaf) for leaf in keras.tree.flatten(predictions)]
        lengths = [len(leaf) for leaf in leaves]
        is_dealt = samples > 0 and not any(leaf.dtype.hasobject for leaf in leaves)
        is_dealt &= all(length % samples == 0 for length in lengths)
        all_ranks = self._communicator.all_gather_object(
            [own, [length // samples for length in lengths] if is_dealt else None]
        )[: self._size]
        factors = all_ranks[0][1]
        if factors is None or any(other != factors for _, other in all_ranks):
            return None
        numbers = [_numbers([blocks for blocks, _ in all_ranks], factor) for factor in factors]
        joined = [self._join(leaf, order) for leaf, order in zip(leaves, numbers, strict=True)]
        return keras.tree.pack_sequence_as(predictions, joined)

    def _join(self, part: np.ndarray, numbers: list[np.ndarray]) -> np.ndarray:
        counts = [len(own) for own in numbers] + [0] * (self._communicator.size - self._size)
        own = part[: counts[self._communicator.rank]]  # a server has predicted what a worker has
        rows = self._communicator.all_gather_parts(np.ascontiguousarray(own), counts)
        whole = np.empty_like(rows)
        whole[np.concatenate(numbers)] = rows
        return whole


def _numbers(blocks_of_workers: list[list[tuple[int, int]]], factor: int) -> list[np.ndarray]:
    """Return, for each worker, which rows of the whole its rows are, if each sample has `factor` rows."""
    sizes = {number: factor * count for blocks in blocks_of_workers for number, count in blocks}
    order = sorted(sizes)
    starts = dict(zip(order, np.cumsum([0, *(sizes[number] for number in order)]).tolist(), strict=False))
    return [
        np.concatenate([np.arange(starts[number], starts[number] + sizes[number]) for number, _ in blocks])
        for blocks in blocks_of_workers
    ]


class _Samples(Dealt):
    """Every size-th sample of arrays."""

    def __init__(self, x: Any, communicator: Communicator):
        super().__init__(communicator)
        with called.unnoted():
            self._count, self.x = division.count(x), shard(x)

    def blocks(self) -> list[tuple[int, int]]:
        return [(number, 1) for number in range(self._rank, self._count, self._size)]


class _Batches(Dealt):
    """Every size-th batch, of which it is noted how many samples it has."""

    def __init__(self, communicator: Communicator):
        super().__init__(communicator)
        self._rows: dict[int, int] = {}

    def blocks(self) -> list[tuple[int, int]]:
        return sorted(self._rows.items())

    def _note(self, number: int, batch: Any) -> Any:
        self._rows[number] = int(arrays.leaves(batch)[0].shape[0])
        return batch


class _OfPyDataset(_Batches):
    def __init__(self, dataset: keras.utils.PyDataset, count: int, communicator: Communicator):
        super().__init__(communicator)
        note, rank, size = self._note, self._rank, self._size

        class Part(keras.utils.PyDataset):
            @property
            def num_batches(self) -> int:
                return len(range(rank, count, size))

            def __getitem__(self, index: int) -> Any:
                number = rank + index * size
                return note(number, dataset[number])

        self.x = Part(dataset.workers, max_queue_size=dataset.max_queue_size)


class _OfTensorFlow(_Batches):
    def __init__(self, dataset: Any, steps: int | None, communicator: Communicator):
        super().__init__(communicator)
        part = (dataset if steps is None else dataset.take(steps)).shard(self._size, self._rank)
        self.steps = int(part.cardinality()) if int(part.cardinality()) > 0 else None
        self._batches = iter(part)
        self._first = next(self._batches, None)
        self.x = self._yield()

    @property
    def is_empty(self) -> bool:
        """Whether there is no batch for this worker."""
        return self._first is None

    def _yield(self) -> Iterator:
        number, batch = self._rank, self._first
        while batch is not None:
            yield self._note(number, batch if isinstance(batch, tuple) else (batch,))
            number, batch = number + self._size, next(self._batches, None)


def deal(x: Any, steps: int | None, communicator: Communicator) -> Dealt | None:
    """Return this worker's part of what all workers have passed to `predict`, or `None` if each predicts all of it.

    All workers call this together.

    Args:
        x: What `predict` was given. Arrays, a `PyDataset` and a `tf.data.Dataset` are dealt.
        steps: Int. So many batches of a dataset; `None`: all.
        communicator: The `Communicator`.
    """
    if keras_dataset.owns(x):
        count = x.num_batches if steps is None else min(steps, x.num_batches or steps)
        if count is None or count < communicator.workers or not are_same(x[0], communicator):
            return None
        return _OfPyDataset(x, count, communicator)
    if tf_dataset.owns(x):
        part = _OfTensorFlow(x, steps, communicator)
        return None if any(communicator.all_gather_object(part.is_empty)) else part
    if not are_arrays(x) or division.count(x) < communicator.workers or not are_same(x, communicator):
        return None
    return _Samples(x, communicator)
