"""Data that continues from one epoch to the next: all workers reach its end together, and restart it together."""

import warnings

import keras

from easyscale.communicator import Communicator
from easyscale.data import division
from easyscale.keras_internals import (
    add_steps_of_pass,
    batches_of,
    has_ended,
    order_of_shuffling,
    set_batches,
    set_order_of_shuffling,
    steps_of_pass,
)
from easyscale.training.keras_fit import locals_of_fit

__all__ = ["DataPass"]


class DataPass:
    """The passes through the data of a `fit(steps_per_epoch=...)`.

    Keras continues with the rest of the data in the next epoch, and starts over when a worker's data has ended. The
    last batch may leave nothing for some workers. These must wait for the others, or workers would be in different
    passes.

    Without `steps_per_epoch` every epoch is a pass, and there is nothing to do.

    Args:
        model: The model, in its `fit()`.
        communicator: The `Communicator`.
    """

    def __init__(self, model: keras.Model, communicator: Communicator):
        self._communicator, given = communicator, locals_of_fit(model)
        self._any = given.get("epoch_iterator")
        self._iterator = self._any if given.get("steps_per_epoch") is not None else None
        self._data = given.get("x")
        self._waits = False
        self._own: int | None = None  # this worker's number of batches in a pass, if known

    def begin(self) -> None:
        """Set the same number of batches per pass on all workers, if all know theirs. All workers must call this."""
        self._own = count = None if self._iterator is None else batches_of(self._iterator)
        if self._iterator is not None and count is None:
            count = division.batches_of_whole(self._data)
        all_ranks = self._communicator.all_gather_object(count)[: self._communicator.workers]
        if None not in all_ranks:
            set_batches(self._iterator, max(all_ranks))
            if min(all_ranks) < max(all_ranks):
                warnings.filterwarnings("ignore", "Your input ran out of data")

    def check(self, steps: int) -> None:
        """Raise `StopIteration` if this worker has no data for `steps` steps, while others may have some."""
        if self._waits or (self._own is not None and steps_of_pass(self._iterator) - steps >= self._own):
            warnings.filterwarnings("ignore", "Your input ran out of data")
            raise StopIteration

    @property
    def has_ended(self) -> bool:
        """True if this worker's data has ended since all began the pass."""
        return self._iterator is not None and has_ended(self._iterator)

    @property
    def is_over(self) -> bool:
        """True if the next epoch begins with the first batch, on all workers."""
        return self._iterator is None or (self.has_ended and not self._waits)

    def go_on(self, steps: int) -> None:
        """Count `steps` steps of this pass that an earlier run made in the epochs before this one."""
        if self._iterator is not None:
            add_steps_of_pass(self._iterator, steps)

    @property
    def order(self) -> int | None:
        """The number that determines how Keras shuffles the current pass, or the next one; `None` if there is none."""
        return None if self._any is None else order_of_shuffling(self._any)

    def set_order(self, order: int) -> None:
        """Set the order of the next pass to one from an earlier run."""
        if self._any is not None:
            set_order_of_shuffling(self._any, order)

    def release(self) -> None:
        """Release the data, whose threads may run as long as there is an iterator over it."""
        self._any = self._iterator = self._data = None

    def end_epoch(self, all_have_ended: bool) -> None:
        """Begin a new pass, or wait for it.

        Args:
            all_have_ended: Bool. Whether the data of all workers has ended.
        """
        self._waits = self.has_ended and not all_have_ended
