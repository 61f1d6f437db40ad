"""Distributed `predict`: deals data to workers, then gathers all predictions in the order of the data.

Arrays are dealt sample by sample, as in training. Of data that comes in batches, each worker predicts every size-th
batch whole, so batches may differ in size and may have fewer samples than there are workers.
"""

import itertools
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
        x: The data to pass to Keras's `predict`.
        steps: Int. The number of batches in `x`, for the progress bar; `None` if Keras can tell, or if it is unknown.
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

    def blocks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each worker, the indices of its blocks of samples and the number of samples in each.

        Collective: all workers call this after Keras has predicted.
        """
        raise NotImplementedError

    def join(self, predictions: Any) -> Any | None:
        """Return all workers' predictions in the order of the data, or `None` if rows cannot be mapped to samples.

        Every sample must have the same number of rows, and rows must be numeric. Collective: all workers call this.
        """
        of_workers = self.blocks()
        samples = int(of_workers[self._rank][1].sum())
        leaves = [np.asarray(leaf) for leaf in keras.tree.flatten(predictions)]
        is_dealt = samples > 0 and not any(leaf.dtype.hasobject or len(leaf) % samples for leaf in leaves)
        own = [len(leaf) // samples for leaf in leaves] if is_dealt else None
        factors = self._communicator.all_gather_object(own)[: self._size]
        if own is None or any(other != own for other in factors):
            return None
        joined = [self._join(leaf, of_workers, factor) for leaf, factor in zip(leaves, own, strict=True)]
        return keras.tree.pack_sequence_as(predictions, joined)

    def _join(self, part: np.ndarray, of_workers: list[tuple[np.ndarray, np.ndarray]], factor: int) -> np.ndarray:
        counts = [factor * int(sizes.sum()) for _, sizes in of_workers]
        counts += [0] * (self._communicator.size - self._size)
        own = part[: counts[self._communicator.rank]]  # a server predicts the same part as a worker, and sends none
        rows = self._communicator.all_gather_parts(np.ascontiguousarray(own), counts)
        whole = np.empty_like(rows)
        whole[_positions(of_workers, factor)] = rows
        return whole


def _positions(of_workers: list[tuple[np.ndarray, np.ndarray]], factor: int) -> np.ndarray:
    """Return the positions in the full output of all workers' rows, in rank order, with `factor` rows per sample."""
    numbers = np.concatenate([own for own, _ in of_workers])
    sizes = factor * np.concatenate([own for _, own in of_workers])
    order = np.argsort(numbers)
    starts = np.empty_like(sizes)
    starts[order] = np.cumsum(sizes[order]) - sizes[order]
    return np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


class _Samples(Dealt):
    """Every size-th sample of arrays."""

    def __init__(self, x: Any, communicator: Communicator):
        super().__init__(communicator)
        with called.unnoted():
            self._count, self.x = division.count(x), shard(x)

    def blocks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        numbers = [np.arange(worker, self._count, self._size) for worker in range(self._size)]
        return [(own, np.ones_like(own)) for own in numbers]


class _Batches(Dealt):
    """Every size-th batch; records the number of samples in each."""

    def __init__(self, communicator: Communicator):
        super().__init__(communicator)
        self._rows: dict[int, int] = {}

    def blocks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        of_workers = self._communicator.all_gather_object(sorted(self._rows.items()))[: self._size]
        pairs = [np.array(own, np.int64).reshape(-1, 2) for own in of_workers]
        return [(own[:, 0], own[:, 1]) for own in pairs]

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
    """Every size-th batch of a dataset, as a dataset of the same elements: Keras need not guess their shapes."""

    def __init__(self, dataset: Any, steps: int | None, communicator: Communicator):
        super().__init__(communicator)
        self._part = (dataset if steps is None else dataset.take(steps)).shard(self._size, self._rank)
        self.steps = int(self._part.cardinality()) if int(self._part.cardinality()) > 0 else None
        batches = iter(self._part)
        first = list(itertools.islice(batches, 1))
        self.is_empty = not first  # this worker has no batch
        self._begun: Iterator | None = itertools.chain(first, batches)
        self.x = self._part.from_generator(self._yield, output_signature=self._part.element_spec)

    def _yield(self) -> Iterator:
        batches, self._begun = self._begun, None
        for index, batch in enumerate(batches or self._part):
            yield self._note(self._rank + index * self._size, batch)


def deal(x: Any, steps: int | None, communicator: Communicator) -> Dealt | None:
    """Return this worker's part of the data passed to `predict`, or `None` if every worker has to predict all of it.

    Collective: all workers call this.

    Args:
        x: The data passed to `predict`. Arrays, a `PyDataset` and a `tf.data.Dataset` are dealt.
        steps: Int. The number of batches of a dataset to predict; `None`: all.
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
