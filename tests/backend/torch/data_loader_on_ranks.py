"""`shard` of a PyTorch `DataLoader`. Workers are threads."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import easyscale
from easyscale.communicator import run_ranks

SIZES = 1, 2, 3


class Stream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        for sample in range(self.samples):
            yield {"x": np.float32(sample), "y": 10 * sample}


class Asked(Dataset):
    """Notes which samples it was asked for."""

    def __init__(self):
        self.indices = []

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.indices.append(index)
        return index


def _numbers(samples):
    return TensorDataset(torch.arange(samples), torch.arange(samples) * 10)


def _passes(size, loader, passes=1):
    """Return, for each worker and pass, its batches of `loader()`."""

    def on_rank(comm):
        part = easyscale.shard(loader(), communicator=comm)
        return [[[np.array(tensor) for tensor in batch] for batch in part] for _ in range(passes)]

    return run_ranks(size, on_rank)


def _together(parts):
    """Return the batches of one process that workers' batches are parts of."""
    found = []
    for number in range(max(map(len, parts))):
        rows = [part[number] for part in parts if number < len(part)]
        found.append(sorted(np.concatenate([row[0] for row in rows]).tolist()))
    return found


def check_batches_of_all_workers_are_those_of_one_process():
    for size in SIZES:
        for samples in (24, 23, 25):
            parts = [only for (only,) in _passes(size, lambda samples=samples: DataLoader(_numbers(samples), 6))]
            assert _together(parts) == [[*range(low, min(low + 6, samples))] for low in range(0, samples, 6)]
            assert all((y == 10 * x).all() for part in parts for x, y in part)


def check_a_worker_reads_its_own_samples_alone():
    def on_rank(comm):
        asked = Asked()
        for _ in easyscale.shard(DataLoader(asked, 5), communicator=comm):
            pass
        return sorted(asked.indices)

    assert run_ranks(2, on_rank) == [[*range(0, 20, 2)], [*range(1, 20, 2)]]


def check_all_workers_shuffle_in_the_same_order_another_one_in_each_pass():
    loader = lambda: DataLoader(_numbers(23), 6, shuffle=True)
    parts = _passes(3, loader, passes=2)
    first, second = (_together([passes[number] for passes in parts]) for number in (0, 1))
    for batches in (first, second):
        assert sorted(sum(batches, [])) == [*range(23)] and [len(batch) for batch in batches] == [6, 6, 6, 5]
    assert first != second
    sampler = WeightedRandomSampler(np.arange(1.0, 24), 23)
    (drawn,), (other,) = _passes(2, lambda: DataLoader(_numbers(23), 6, sampler=sampler))
    assert len(sum(_together([drawn, other]), [])) == 23


def check_a_stream_is_cut_batch_by_batch():
    def on_rank(comm):
        part = easyscale.shard(DataLoader(Stream(11), 4), communicator=comm)
        assert not hasattr(part.dataset, "__len__")
        return [batch["x"].tolist() for batch in part]

    assert run_ranks(2, on_rank) == [[[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9]]]


def check_one_process_gets_what_it_has_given():
    loader = DataLoader(_numbers(4), 2)
    assert easyscale.shard(loader, communicator="local") is loader


def check_small_batches_are_refused():
    def on_rank(comm):
        with pytest.raises(ValueError, match="at least one sample of each batch. Received: 2 samples for 3 workers"):
            list(easyscale.shard(DataLoader(_numbers(10), 2), communicator=comm))

    run_ranks(3, on_rank)


def check_processes_that_read_ahead_are_kept():
    def on_rank(comm):
        return easyscale.shard(DataLoader(_numbers(24), 6, num_workers=2, prefetch_factor=3), communicator=comm)

    assert [(part.num_workers, part.prefetch_factor) for part in run_ranks(2, on_rank)] == [(2, 3)] * 2
