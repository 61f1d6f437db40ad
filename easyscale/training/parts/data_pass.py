"""Data that go on from one epoch to the next: all workers come to their end together, and begin anew together."""

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

    Keras goes on with the rest of the data in the next epoch, and begins anew when a worker's have ended. The last
    batch of all may leave nothing for some workers. These have to wait for the others, or each would be in another
    pass.

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
        self._own: int | None = None  # so many batches a pass has for this worker, if that is known

    def begin(self) -> None:
        """Let all workers count as many batches in a pass, if all know how many. All call this together."""
        self._own = count = None if self._iterator is None else batches_of(self._iterator)
        if self._iterator is not None and count is None:
            count = division.batches_of_whole(self._data)
        all_ranks = self._communicator.all_gather_object(count)[: self._communicator.workers]
        if None not in all_ranks:
            set_batches(self._iterator, max(all_ranks))
            if min(all_ranks) < max(all_ranks):
                warnings.filterwarnings("ignore", "Your input ran out of data")

    def check(self, steps: int) -> None:
        """Raise `StopIteration` if this worker has no data for so many steps, and the others may have."""
        if self._waits or (self._own is not None and steps_of_pass(self._iterator) - steps >= self._own):
            warnings.filterwarnings("ignore", "Your input ran out of data")
            raise StopIteration

    @property
    def has_ended(self) -> bool:
        """Whether this worker's data have ended since all began the pass."""
        return self._iterator is not None and has_ended(self._iterator)

    @property
    def is_over(self) -> bool:
        """Whether the next epoch begins with the first batch, on all workers."""
        return self._iterator is None or (self.has_ended and not self._waits)

    def go_on(self, steps: int) -> None:
        """Take in that so many steps of this pass were made by an earlier run, in the epochs before this one."""
        if self._iterator is not None:
            add_steps_of_pass(self._iterator, steps)

    @property
    def order(self) -> int | None:
        """The number by which Keras shuffles the pass under way, or the next one; `None` if it has no such number."""
        return None if self._any is None else order_of_shuffling(self._any)

    def set_order(self, order: int) -> None:
        """Give the next pass the order that it had in an earlier run."""
        if self._any is not None:
            set_order_of_shuffling(self._any, order)

    def release(self) -> None:
        """Let go of the data, whose threads may go on as long as there is an iterator over them."""
        self._any = self._iterator = self._data = None

    def end_epoch(self, all_have_ended: bool) -> None:
        """Begin a new pass, or wait for it.

        Args:
            all_have_ended: Bool. Whether the data of all workers have.
        """
        self._waits = self.has_ended and not all_have_ended
