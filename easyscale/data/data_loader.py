"""A worker's part of a `torch.utils.data.DataLoader`."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from easyscale.communicator import Communicator
from easyscale.data import arrays, division
from easyscale.settings import Settings

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["owns", "part"]

_one_at_a_time = threading.RLock()  # PyTorch's default generator is shared by all threads


def owns(data: Any) -> bool:
    """Return whether `data` is a PyTorch `DataLoader`, without loading PyTorch."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(data, torch_data.DataLoader)


def part(loader: "DataLoader", communicator: Communicator) -> "DataLoader":
    """Return a loader in which each batch is this worker's part of the batch with the same index.

    From a map-style dataset only this worker's samples are read. An iterable one is read in full, and its batches are
    cut. Shuffling with PyTorch's default generator gives all workers the same order, a new one in each pass.
    """
    from torch.utils.data import DataLoader, IterableDataset

    position = division.position_of(communicator)
    if position()[1] == 1 and not communicator.membership.keeps_global_batch:
        return loader

    class Part(DataLoader):
        def __iter__(self) -> Any:
            with _one_at_a_time:  # this draws a number, too
                return super().__iter__()

    in_order = _SameOrder()
    options = {name: getattr(loader, name) for name in ("pin_memory", "worker_init_fn", "generator")}
    if loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset):
        options |= {name: getattr(loader, name) for name in ("num_workers", "collate_fn", "timeout")}
        options |= {
            name: getattr(loader, name)
            for name in ("multiprocessing_context", "prefetch_factor", "persistent_workers")
            if loader.num_workers
        }
        indices = _Parts(loader.batch_sampler, position, in_order, len, lambda batch, rank, size: batch[rank::size])
        return Part(loader.dataset, batch_sampler=indices, **options)

    class Rows(IterableDataset):
        def __iter__(self) -> Iterator:
            return iter(_Parts(loader, position, in_order, division.count, arrays.part))

    class RowsOfKnownLength(Rows):
        def __len__(self) -> int:
            return len(loader)

    dataset = RowsOfKnownLength() if hasattr(loader.dataset, "__len__") else Rows()
    return Part(dataset, batch_size=None, collate_fn=_as_it_is, **options)


def _as_it_is(batch: Any) -> Any:
    return batch


class _Parts:
    """This worker's part of each batch: sample `i`, counted over all batches, goes to worker `i % size`.

    Args:
        batches: Iterable of batches, of samples or of their indices, for any number of passes.
        position: Function without arguments. Returns this worker's number and the number of workers.
        in_order: `_SameOrder`.
        count: Function. Returns the number of samples in a batch.
        cut: Function of a batch, `start` and `step`. Returns these samples of it.
    """

    def __init__(
        self,
        batches: Iterable,
        position: Callable[[], tuple[int, int]],
        in_order: "_SameOrder",
        count: Callable[[Any], int],
        cut: Callable[[Any, int, int], Any],
    ):
        self._batches, self._position, self._in_order, self._count, self._cut = batches, position, in_order, count, cut

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator:
        before, last = 0, None
        for batch in self._in_order.iterator(self._batches):
            rank, size = self._position()
            if last is not None and last < size:  # a single small batch may be the last of an epoch
                division.refuse_batches(last, size)
            last = self._count(batch)
            start, before = (rank - before) % size, before + last
            if start < last:
                yield self._cut(batch, start, size)


class _SameOrder:
    """Starts each pass with PyTorch's default generator in the same state on all workers."""

    def __init__(self) -> None:
        import torch

        chosen = Settings.read().auto
        with _one_at_a_time:
            self._seed, self._passes = torch.initial_seed() if chosen is None else chosen, 0

    def iterator(self, batches: Iterable) -> Iterator:
        """Return an iterator over these batches, the first of which has already been drawn."""
        import torch

        with _one_at_a_time, torch.random.fork_rng(devices=[]):
            torch.manual_seed((self._seed + 0x9E3779B97F4A7C15 * self._passes) % 2**63)
            self._passes += 1
            iterator = iter(batches)
            first = list(itertools.islice(iterator, 1))
        return itertools.chain(first, iterator)
