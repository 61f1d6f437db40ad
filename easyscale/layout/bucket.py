"""Buckets: the flat vectors in which many gradients travel as one.

A bucket has one dtype. In it every gradient has a slot, and slots start at multiples of 64 bytes, so that a slot can
become a TensorFlow tensor without a copy. NumPy only.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from easyscale.layout.specs import Spec

__all__ = ["ALIGNMENT", "Bucket", "Lender", "Slot", "lend", "lend_for_a_step", "plan"]

ALIGNMENT = 64  # bytes; TensorFlow takes an array so aligned as a tensor without a copy


class Lender(Protocol):
    """What vectors are lent by: an `Exchange`."""

    def lend(self, length: int, dtype: np.dtype, common: bool = False) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where the gradient number `index`, of `shape`, stands: between `start` and `stop` of the vector."""

    index: int
    shape: tuple[int, ...]
    start: int
    stop: int


class Bucket:
    """The slots of one flat vector.

    Attributes:
        dtype: The dtype of all its gradients.
        slots: List of `Slot`.
        length: Int. The number of elements, with the gaps between slots.
    """

    def __init__(self, dtype: np.dtype):
        self.dtype = np.dtype(dtype)
        self.slots: list[Slot] = []
        self.length = 0

    def reserve(self, index: int, shape: Sequence[int]) -> None:
        """Give the gradient number `index` the next slot."""
        size = math.prod(shape)
        self.slots.append(Slot(index, tuple(shape), self.length, self.length + size))
        gap = max(1, ALIGNMENT // self.dtype.itemsize)
        self.length = -(-(self.length + max(size, 1)) // gap) * gap

    def round_up(self, parts: int) -> None:
        """Make the vector so long that it can be cut into `parts` that begin where a slot could."""
        gap = parts * max(1, ALIGNMENT // self.dtype.itemsize)
        self.length = -(-self.length // gap) * gap

    def pack(self, gradients: Mapping[int, np.ndarray | float], vector: np.ndarray, weight: float) -> None:
        """Write every gradient, or number, times `weight` to its slot. A weight of 0 writes zeros, whatever it is."""
        for slot in self.slots:
            part = vector[slot.start : slot.stop].reshape(slot.shape)
            if weight == 0:
                part[...] = 0
            elif slot.index in gradients:
                # A half type is multiplied in float32: a weight of 1/3 has no good half.
                wide = np.promote_types(self.dtype, "float32") if self.dtype.itemsize < 4 else self.dtype
                np.multiply(gradients[slot.index], wide.type(weight), out=part, dtype=wide, casting="unsafe")

    def add(self, arrays: Sequence[np.ndarray], vector: np.ndarray) -> None:
        """Add to every gradient's slot the array of the same number, where there is one."""
        for slot in self.slots:
            if slot.index < len(arrays):
                vector[slot.start : slot.stop].reshape(slot.shape)[...] += arrays[slot.index]

    def unpack(self, vector: np.ndarray) -> dict[int, np.ndarray]:
        """Return the slots' parts of `vector`, in the gradients' shapes, without a copy."""
        return {slot.index: vector[slot.start : slot.stop].reshape(slot.shape) for slot in self.slots}


def plan(specs: Sequence[Spec], bucket_bytes: int | None = None, without: Collection[int] = ()) -> list[Bucket]:
    """Distribute gradients to buckets, in their order; the same arguments give the same buckets on every rank.

    Args:
        specs: `Spec` of each gradient.
        bucket_bytes: Int. A bucket is closed when it holds this much. Defaults to `None`: one bucket for each dtype.
        without: The numbers of gradients that are in no bucket. Defaults to none.

    Example:

    >>> [bucket.length for bucket in plan([Spec((3,), np.dtype("float32")), Spec((2, 2), np.dtype("float32"))])]
    [32]
    """
    buckets = []
    filling: dict[np.dtype, Bucket] = {}
    for index, (shape, dtype) in enumerate(specs):
        if index in without:
            continue
        dtype = np.dtype(dtype)
        bucket = filling.get(dtype)
        if bucket is None or (bucket_bytes is not None and bucket.length * dtype.itemsize >= bucket_bytes):
            bucket = filling[dtype] = Bucket(dtype)
            buckets.append(bucket)
        bucket.reserve(index, shape)
    return buckets


def lend(buckets: Sequence[Bucket], exchange: Lender, common: bool = False) -> list[np.ndarray]:
    """Return a vector for each bucket: pieces of one that `exchange.lend` returns for each dtype.

    So the memory does not depend on the size of buckets. All ranks must call this alike.
    """
    lengths: dict[np.dtype, int] = {}
    starts = []
    for bucket in buckets:
        starts.append(lengths.get(bucket.dtype, 0))
        lengths[bucket.dtype] = starts[-1] + bucket.length
    vectors = {dtype: exchange.lend(length, dtype, common=common) for dtype, length in lengths.items()}
    return [vectors[bucket.dtype][start : start + bucket.length] for bucket, start in zip(buckets, starts, strict=True)]


def lend_for_a_step(buckets: Sequence[Bucket], exchange: Lender) -> list[list[np.ndarray]]:
    """Return all that training needs: twice vectors for gradients, and twice for weights.

    TensorFlow lets go of what it was given some time after a step, so both take turns in two slots.
    """
    return [lend(buckets, exchange, common) for common in (False, False, True, True)]
