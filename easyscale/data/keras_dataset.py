"""A worker's part of a `keras.utils.PyDataset`."""

import sys
from typing import TYPE_CHECKING, Any

from easyscale.communicator import Communicator
from easyscale.data import arrays, division

if TYPE_CHECKING:
    import keras

__all__ = ["owns", "part"]


def owns(data: Any) -> bool:
    """Return whether `data` is a `keras.utils.PyDataset`, without loading Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(data, keras.utils.PyDataset)


def part(dataset: "keras.utils.PyDataset", communicator: Communicator) -> "keras.utils.PyDataset":
    """Return a dataset in which each batch is this worker's part of the batch with the same index."""
    import keras

    _, size = division.position_of(communicator)()
    if size == 1 and not communicator.membership.keeps_global_batch:
        return dataset
    position = division.position_of(communicator)

    class Shard(keras.utils.PyDataset):
        def __init__(self) -> None:
            super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
            self._batch = division.count(dataset[0])
            arrays.check_samples(self._batch, size, " of each batch")
            self._length: int | None = None

        @property
        def num_batches(self) -> int | None:
            if self._length is None:
                self._length = dataset.num_batches
                # If the last batch has fewer samples than there are workers, some workers get none of it.
                if self._length and not self._mine(self._length - 1):
                    self._length -= 1
            return self._length

        def __getitem__(self, index: int) -> Any:
            (_, size), batch, start = position(), dataset[index], self._start(index)
            if division.count(batch) <= start:
                division.refuse_batches(division.count(batch), size)
            return arrays.part(batch, start, size)

        def on_epoch_begin(self) -> None:
            dataset.on_epoch_begin()

        def on_epoch_end(self) -> None:
            dataset.on_epoch_end()

        def _start(self, index: int) -> int:
            rank, size = position()
            return (rank - index * self._batch) % size  # element i of the whole dataset goes to worker i % size

        def _mine(self, index: int) -> bool:
            return division.count(dataset[index]) > self._start(index)

    return division.mark(Shard()) if communicator.membership.keeps_global_batch else Shard()
