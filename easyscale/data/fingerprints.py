"""Fingerprints of the data that `shard` divides, to find ranks that have shuffled or split it without a common seed.

Each rank would then take its part of a different order: parts overlap, samples are missing, and test samples are among
the training data. `shard` does not communicate, so `fit()` compares the fingerprints.
"""

import os
import sys
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from easyscale.data import arrays, data_loader, division, keras_dataset, tf_dataset
from easyscale.errors import EasyScaleWarning
from easyscale.keras_internals import inputs_of, shuffle_seeds, tensors_of

__all__ = ["note", "noted", "warn_of_different"]

_ROWS, _BYTES = 16, 4096  # of each array, how many rows and how much of each are read

_noted: list[int] = []
_has_warned = False


def note(data: Sequence[Any]) -> None:
    """Add the fingerprint of the arguments of a call of `shard`."""
    found = 0
    for argument in data:
        if tf_dataset.owns(argument):
            found = _of_dataset(argument, found)
        elif data_loader.owns(argument):
            torch = sys.modules["torch"]
            seed = torch.initial_seed() if argument.generator is None else argument.generator.initial_seed()
            found = zlib.crc32(str(seed).encode(), found)
        elif not keras_dataset.owns(argument):
            for leaf in arrays.leaves(argument):
                found = _of_rows(leaf, found)
    _noted.append(found)


def noted() -> list[int]:
    """Return the fingerprints of all calls of `shard` since the last call of this function."""
    found, _noted[:] = list(_noted), []
    return found


def warn_of_different(all_ranks: Sequence[Sequence[int]]) -> None:
    """Warn, once, if ranks have given different data to `shard`.

    Args:
        all_ranks: For each rank, the result of `noted`. Ranks with different numbers of calls are not compared.
    """
    global _has_warned
    first = all_ranks[0]
    different = [rank for rank, own in enumerate(all_ranks) if len(own) == len(first) and own != first]
    if different and not _has_warned:
        _has_warned = True
        other = all_ranks[different[0]]
        call = next(number for number, pair in enumerate(zip(first, other, strict=True)) if pair[0] != pair[1])
        warnings.warn(
            "all ranks must give `shard` the same data in the same order. Received: in call "
            f"{call + 1} of `shard`, other data or another shuffle on rank {different[0]} than on rank 0; samples are "
            "missing, or on several ranks, or in training and test data. Shuffle and split with a fixed seed before "
            "`shard`, such as by `keras.utils.set_random_seed(1)` at the top of the script, or shuffle after it",
            EasyScaleWarning,
            stacklevel=2,
        )


def _of_rows(array: Any, found: int) -> int:
    """Continue a checksum with the length of an array and some of its rows."""
    count = division.count(array)
    found = zlib.crc32(str(count).encode(), found)
    rows = array.iloc if hasattr(array, "iloc") else array
    for index in sorted({*np.linspace(0, count - 1, _ROWS).astype(int).tolist()}) if count else ():
        try:
            row = np.asarray(rows[index])
        except Exception:  # rows of a sparse or ragged kind: a warning less is better than a job that ends
            return found
        text = row.tobytes() if row.dtype.kind not in "OU" else str(row.tolist()).encode()
        found = zlib.crc32(text[:_BYTES], found)
    return found


def _of_dataset(dataset: Any, found: int) -> int:
    """Continue a checksum with what a `tf.data.Dataset` is made of: the seeds of its shuffles, and its tensors.

    A shuffle without a seed never equals another one. The name of a single file may differ, as in a temporary folder.
    """
    seeds = shuffle_seeds(dataset)
    if seeds is not None:
        found = zlib.crc32(str(seeds).encode() if any(seeds) else os.urandom(8), found)
    for tensor in tensors_of(dataset):
        is_file = tensor.dtype.name == "string" and tensor.shape.num_elements() == 1
        if tensor.shape.rank and not is_file:
            found = _of_rows(tensor, found)
    for source in inputs_of(dataset):
        found = _of_dataset(source, found)
    return found
