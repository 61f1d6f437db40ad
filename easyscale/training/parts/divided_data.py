"""Data of a `fit()` that `shard` has divided: divided again when workers fail or join."""

import random
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale import called
from easyscale.communicator import Communicator
from easyscale.data import division
from easyscale.keras_internals import OF_FIT, another_iterator, set_batches
from easyscale.training.keras_fit import KERAS_BATCH, locals_of_fit

__all__ = ["DividedData"]


class DividedData:
    """Arrays of which each worker takes its part of every global batch, even after the workers have changed.

    As long as the workers are those among which `shard` divided the arrays, Keras goes through its parts. After a
    change, each worker takes, from the step of the change on, its share of what is left of the epoch:

        rows `rank::size` of `order[step * G : (step + 1) * G]`        in step `step`, with the global batch G

    The order is that of the arrays or, with `shuffle`, a new random one for each epoch, the same on all workers. The
    number of steps in an epoch does not change. Each worker holds the whole arrays, and copies its part once an epoch.

    Args:
        model: The model, in its `fit()`.
        communicator: The `Communicator`.
    """

    def __init__(self, model: keras.Model, communicator: Communicator):
        self._model, self._communicator = model, communicator
        self._is_used = communicator.membership.keeps_global_batch and not communicator.servers
        self._given: Mapping = locals_of_fit(model) if self._is_used else {}
        self._batch = int(self._given.get("batch_size") or KERAS_BATCH)
        self._whole = self._find_whole()
        self._epoch = self._step = self._seed = self._global_batch = 0
        self._anew: division.Whole | None = None  # data that is divided among other workers than at first
        self._instead: Iterator | None = None
        self._own_end = self._given["epoch_iterator"].num_batches if self._whole else None
        self._end: int | None = None  # the step of this epoch before which this worker's data ends

    def _find_whole(self) -> division.Whole | None:
        given = self._given
        # With `steps_per_epoch` Keras goes on with one iterator in the next epoch. A fixed batch cannot grow.
        if not given or given["steps_per_epoch"] is not None or _has_fixed_batch(self._model):
            return None
        return division.whole_of(given["x"], given["y"], given["sample_weight"])

    @property
    def keeps_global_batch(self) -> bool:
        """True if the current workers together have all of the data, in global batches as large as at first."""
        return self._anew is not None or division.divides_itself(self._given.get("x"))

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch, numbered from 0."""
        self._epoch, self._step, self._instead, self._end = epoch, 0, None, self._own_end

    def count(self, steps: int) -> None:
        """Count steps of the epoch that are done, or count as done."""
        self._step += steps

    def settle(self) -> None:
        """Agree on the division of data from now on. All workers must call this."""
        if not self._is_used:
            return
        seed = zlib.crc32(repr(random.getstate()).encode())  # derived from the user's, without changing it
        meant = called.global_batch_of(self._batch)
        local = [self._whole is not None, self._batch, meant, self._step, seed, self._global_batch]
        all_ranks = self._communicator.all_gather_object(local)
        known, batches, meant_batches, steps, seeds, global_batches = zip(*all_ranks, strict=True)
        self._step, self._seed = max(steps), seeds[0]
        self._instead = self._anew = None
        if self._whole is not None and all(known):
            workers = self._whole.workers
            self._global_batch = global_batches[0] or _global_batch(batches, meant_batches, len(workers))
            are_others = workers != sorted(self._communicator.membership.initial_ranks)
            self._anew = self._whole if are_others or self._global_batch != sum(batches) else None
            # The data of some ends earlier: they have no part in the last batch, or are a step behind.
            set_batches(self._given["epoch_iterator"], -(-division.count(self._whole.data) // self._global_batch))
            warnings.filterwarnings("ignore", "Your input ran out of data")

    def follow(self, iterator: Iterator) -> Iterator:
        """Return the iterator to take data from: `iterator` or its replacement.

        Raises:
            StopIteration: If this worker has no data left in this epoch.
        """
        if self._anew is not None and self._instead is None:
            self._instead = self._rest(self._anew.data)
        if self._end is not None and self._step >= self._end:
            raise StopIteration
        return iterator if self._instead is None else self._instead

    def _rest(self, data: Any) -> Iterator:
        """Return an iterator over this worker's part of the rest of the epoch."""
        given, rank, size = self._given, self._communicator.rank, self._communicator.workers
        samples = division.count(data)
        order = np.arange(samples)
        if given["shuffle"]:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(samples)
        left = order[self._step * self._global_batch :]
        local = left[np.arange(len(left)) % self._global_batch % size == rank]
        batch = len(range(rank, self._global_batch, size))
        self._end = self._step + -(-len(local) // batch)
        if not len(local):
            return iter(())
        x, y, sample_weight = division.rows(data, local)
        another = another_iterator(
            given["epoch_iterator"],
            self._model,
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch,
            shuffle=False,
            class_weight=given["class_weight"],
            steps_per_execution=self._model.steps_per_execution,
        )
        backend = backends.get()
        backend.give_iterators(another)
        return backend.begin_pass(another)

    def release(self) -> None:
        """Release the user's arrays: the `fit()` is over."""
        self._given, self._whole, self._anew, self._instead, self._is_used = {}, None, None, None, False

    def of_validation(self, arguments: Mapping) -> Mapping:
        """Return the arguments of the `evaluate()` that `fit()` calls, with this worker's current part."""
        names = ("x", "y", "sample_weight")
        whole = division.whole_of(*(arguments.get(name) for name in names)) if self._is_used else None
        if whole is None or arguments.get("steps") is not None or OF_FIT not in arguments:
            return arguments
        if whole.workers == sorted(self._communicator.membership.initial_ranks):
            return arguments
        rank, size = self._communicator.rank, self._communicator.workers
        local = division.rows(whole.data, np.arange(rank, division.count(whole.data), size))
        return {**arguments, **dict(zip(names, local, strict=True)), OF_FIT: False}


def _global_batch(batches: Sequence[int], meant: Sequence[int | None], workers: int) -> int:
    """Return the number of samples that all workers together train on in a step.

    Args:
        batches: The `batch_size` of `fit()` on each worker.
        meant: For each worker, the global batch from which `local_batch` computed it; `None` if it did not. It may have
            done so before workers failed, or since then.
        workers: Int. The number of workers among which data was divided, and batches if not by `local_batch`.
    """
    if meant[0] is not None and all(one == meant[0] for one in meant):
        return meant[0]
    return sum(batches) * workers // len(batches)


def _has_fixed_batch(model: keras.Model) -> bool:
    return model.built and any(tensor.shape[0] is not None for tensor in getattr(model, "inputs", None) or [])
