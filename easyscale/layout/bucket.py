"""Buckets: the flat vectors in which many gradients travel as one.

A bucket has one dtype, and a slot for every gradient. Slots start at multiples of 64 bytes, so that a slot can become a
TensorFlow tensor without a copy. NumPy only.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from easyscale.layout.specs import Spec

__all__ = ["ALIGNMENT", "Bucket", "Lender", "Slot", "lend", "lend_for_a_step", "plan"]

ALIGNMENT = 64  # bytes; TensorFlow uses an array with this alignment as a tensor without a copy


class Lender(Protocol):
    """An object that lends vectors: an `Exchange`."""

    def lend(self, length: int, dtype: np.dtype, common: bool = False) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Slot:
    """The position of gradient number `index`, of `shape`, in the vector: from `start` to `stop`."""

    index: int
    shape: tuple[int, ...]
    start: int
    stop: int


class Bucket:
    """The slots of one flat vector.

    Attributes:
        dtype: The dtype of all its gradients.
        slots: List of `Slot`.
        length: Int. The number of elements, including the gaps between slots.
    """

    def __init__(self, dtype: np.dtype):
        self.dtype = np.dtype(dtype)
        self.slots: list[Slot] = []
        self.length = 0

    def reserve(self, index: int, shape: Sequence[int]) -> None:
        """Assign the next slot to gradient number `index`."""
        size = math.prod(shape)
        self.slots.append(Slot(index, tuple(shape), self.length, self.length + size))
        gap = max(1, ALIGNMENT // self.dtype.itemsize)
        self.length = -(-(self.length + max(size, 1)) // gap) * gap

    def round_up(self, parts: int) -> None:
        """Extend the vector so that it can be cut into `parts` equal parts, each aligned like a slot."""
        gap = parts * max(1, ALIGNMENT // self.dtype.itemsize)
        self.length = -(-self.length // gap) * gap

    def pack(self, gradients: Mapping[int, np.ndarray | float], vector: np.ndarray, weight: float) -> None:
        """Write every gradient, or number, times `weight` to its slot. A weight of 0 writes zeros, even for NaN."""
        for slot in self.slots:
            part = vector[slot.start : slot.stop].reshape(slot.shape)
            if weight == 0:
                part[...] = 0
            elif slot.index in gradients:
                # A half type is multiplied in float32: a weight of 1/3 is too coarse in half precision.
                wide = np.promote_types(self.dtype, "float32") if self.dtype.itemsize < 4 else self.dtype
                np.multiply(gradients[slot.index], wide.type(weight), out=part, dtype=wide, casting="unsafe")

    def add(self, arrays: Sequence[np.ndarray], vector: np.ndarray) -> None:
        """Add to every slot the array of the same number, if there is one."""
        for slot in self.slots:
            if slot.index < len(arrays):
                vector[slot.start : slot.stop].reshape(slot.shape)[...] += arrays[slot.index]

    def unpack(self, vector: np.ndarray) -> dict[int, np.ndarray]:
        """Return views of the slots of `vector`, in the gradients' shapes, by number."""
        return {slot.index: vector[slot.start : slot.stop].reshape(slot.shape) for slot in self.slots}


def plan(specs: Sequence[Spec], bucket_bytes: int | None = None, without: Collection[int] = ()) -> list[Bucket]:
    """Distribute gradients to buckets, in order. The same arguments give the same buckets on every rank.

    Args:
        specs: `Spec` of each gradient.
        bucket_bytes: Int. A bucket is closed when it holds this much. Defaults to `None`: one bucket per dtype.
        without: The numbers of gradients to leave out. Defaults to none.

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
    """Return a vector for each bucket, cut from one vector per dtype that `exchange.lend` returns.

    So the memory does not depend on the bucket size. All ranks must call this the same way.
    """
    lengths: dict[np.dtype, int] = {}
    starts = []
    for bucket in buckets:
        starts.append(lengths.get(bucket.dtype, 0))
        lengths[bucket.dtype] = starts[-1] + bucket.length
    vectors = {dtype: exchange.lend(length, dtype, common=common) for dtype, length in lengths.items()}
    return [vectors[bucket.dtype][start : start + bucket.length] for bucket, start in zip(buckets, starts, strict=True)]


def lend_for_a_step(buckets: Sequence[Bucket], exchange: Lender) -> list[list[np.ndarray]]:
    """Return all vectors that training needs: two sets for gradients, and two for weights.

    TensorFlow releases an array some time after the step, so steps alternate between two sets.
    """
    return [lend(buckets, exchange, common) for common in (False, False, True, True)]
