"""The parts of a model's variables that each rank owns, and their exchange. NumPy only."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from easyscale.layout import bucket as buckets
from easyscale.layout.sliced import Sliced
from easyscale.layout.specs import Spec

__all__ = ["Memory", "Owners", "Ranks", "Shards", "length_of"]


class Transfer(Protocol):
    """A pending transfer: a `Request`."""

    def wait(self) -> None: ...


class Ranks(Protocol):
    """The ranks that own parts: a `Communicator`."""

    rank: int
    size: int

    def isend(self, buffer: np.ndarray, to: int) -> Transfer: ...

    def ireceive(self, buffer: np.ndarray, source: int) -> Transfer: ...

    def all_gather_object(self, value: Any) -> list: ...


class Owners(buckets.Lender, Protocol):
    """The assignment of parts to ranks: an `Exchange`."""

    @property
    def communicator(self) -> Ranks: ...

    def owned(self, length: int) -> slice: ...

    def gather(self, buffer: np.ndarray) -> None: ...


class Memory(Protocol):
    """The memory for collected arrays: a `SnapshotMemory`."""

    def empty(self, shape: Sequence[int] | int, dtype: np.dtype) -> np.ndarray: ...


class Shards:
    """Arrays laid end to end in buckets, which the exchange divides among ranks.

    A rank's part of a bucket is contiguous, and so is its part of an array, which may be empty.

    Args:
        exchange: A connected `Exchange`. All ranks must create this object the same way.
        specs: `Spec` of each array.
        bucket_bytes: Int or `None`. See `bucket.plan`.
        whole: Bool. Whether each array has a single owner. Defaults to `False`.
        slices: Dict. `Sliced`, by number, for each array that is already divided into slices. They are in no bucket.
            Defaults to none.
        groups: Dict. `Sliced`, by number, for each array that is itself a slice, the same on these ranks; other ranks
            have other slices. They are in separate buckets, so that the layout of other arrays does not depend on them.
            Defaults to none.

    Attributes:
        slices: The same.
        groups: The same.
        buckets: List of `Bucket`, whose slots have the numbers of the arrays.
        parts: List of slices, one per array: the elements, counted flat, that this rank owns. Empty for an array in no
            bucket.
        all_parts: For each rank, a list of such slices.
        ranges: For each rank, a list of slices, one per bucket: the elements that the rank owns.
    """

    def __init__(
        self,
        exchange: Owners,
        specs: Sequence[Spec],
        bucket_bytes: int | None = None,
        whole: bool = False,
        slices: Mapping[int, Sliced] | None = None,
        groups: Mapping[int, Sliced] | None = None,
    ):
        self._exchange, self.slices, self.groups = exchange, dict(slices or {}), dict(groups or {})
        self.buckets = buckets.plan(specs, bucket_bytes, without={*self.slices, *self.groups})
        self.buckets += buckets.plan(specs, bucket_bytes, without=set(range(len(specs))) - set(self.groups))
        self._spans: dict[int, slice] = {}  # the owned part of an array, in its bucket
        self.parts: list[slice] = [slice(0, 0)] * len(specs)
        ranges = []
        for bucket in self.buckets:
            bucket.round_up(exchange.communicator.size)
            own = exchange.owned(bucket.length)
            if whole:
                own = slice(_nearest_edge(bucket, own.start), _nearest_edge(bucket, own.stop))
            ranges.append(own)
            for slot in bucket.slots:
                start = min(max(own.start, slot.start), slot.stop)
                stop = max(start, min(own.stop, slot.stop))
                self._spans[slot.index] = slice(start, stop)
                self.parts[slot.index] = slice(start - slot.start, stop - slot.start)
        buckets.lend_for_a_step(self.buckets, exchange)  # fails now if there is too little memory
        all_parts = exchange.communicator.all_gather_object([[part.start, part.stop] for part in self.parts])
        self.all_parts = [[slice(*part) for part in parts] for parts in all_parts]
        all_parts = exchange.communicator.all_gather_object([[own.start, own.stop] for own in ranges])
        self.ranges = [[slice(*own) for own in ranges] for ranges in all_parts]

    def shrink(self, lost: Sequence[int]) -> None:
        """Renumber the ranks without the lost ones, which owned nothing."""
        for all_parts in (self.all_parts, self.ranges):
            all_parts[:] = [slices for rank, slices in enumerate(all_parts) if rank not in lost]

    def part_of(self, index: int, whole: np.ndarray) -> np.ndarray:
        """Return this rank's part of a whole array: a vector, or its slice of an array in no bucket."""
        if index in self.groups:
            whole = self.groups[index].part(whole)
        return self.slices[index].part(whole) if index in self.slices else whole.reshape(-1)[self.parts[index]]

    def own_parts(self, bucket: buckets.Bucket, vector: np.ndarray) -> dict[int, np.ndarray]:
        """Return views of this rank's parts of the arrays in `vector`, which is laid out as `bucket`."""
        return {slot.index: vector[self._spans[slot.index]] for slot in bucket.slots}

    def pack_own(self, parts: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """Return, for each bucket, a new vector of this rank's range, filled with its parts of the arrays."""
        vectors = []
        for bucket, own in zip(self.buckets, self.ranges[self._exchange.communicator.rank], strict=True):
            vectors.append(np.zeros(own.stop - own.start, bucket.dtype))
            for slot in bucket.slots:
                vectors[-1][self._within(slot.index, own)] = parts[slot.index]
        return vectors

    def unpack_own(self, vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return this rank's parts of the arrays, by number, from vectors laid out as by `pack_own`."""
        parts: dict[int, np.ndarray] = {}
        for bucket, own, vector in zip(
            self.buckets, self.ranges[self._exchange.communicator.rank], vectors, strict=True
        ):
            parts |= {slot.index: vector[self._within(slot.index, own)] for slot in bucket.slots}
        return [parts[index] for index in range(len(parts))]

    def _within(self, index: int, own: slice) -> slice:
        span = self._spans[index]
        empty = span.start == span.stop
        return slice(0, 0) if empty else slice(span.start - own.start, span.stop - own.start)

    def gather(self, parts: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Return whole arrays, by number, from each rank's own parts.

        The ranks of a node may receive the same memory. It is lent: see `Exchange.lend`.
        """
        wholes: dict[int, np.ndarray] = {}
        for bucket, vector in self.lay_out(parts):
            self.gather_bucket(vector)
            wholes |= {index: whole for index, whole in bucket.unpack(vector).items() if index in parts}
        return wholes

    def lay_out(self, parts: Mapping[int, np.ndarray]) -> Iterator[tuple[buckets.Bucket, np.ndarray]]:
        """Yield each bucket with a vector for `gather_bucket` that holds this rank's own parts of the arrays."""
        for bucket, vector in zip(self.buckets, buckets.lend(self.buckets, self._exchange, common=True), strict=True):
            for slot in bucket.slots:
                if slot.index in parts:
                    vector[self._spans[slot.index]] = parts[slot.index]
            yield bucket, vector

    def alike(self) -> list[slice | None]:
        """Return, for each bucket, the range that all ranks of this rank's group hold; `None` if it holds slices."""
        ranges = self.ranges[self._exchange.communicator.rank]
        is_sliced = [any(slot.index in self.groups for slot in bucket.slots) for bucket in self.buckets]
        return [None if sliced else own for sliced, own in zip(is_sliced, ranges, strict=True)]

    def gather_bucket(self, vector: np.ndarray) -> None:
        """Complete a vector from `lay_out` with the parts of all ranks. All must call this in the same order."""
        self._exchange.gather(vector)

    def collect(
        self, index: int, part: np.ndarray, root: int | None = None, memory: Memory | None = None
    ) -> np.ndarray:
        """Return a whole array, flat, that is divided like array `index`.

        Args:
            index: Int. The number of the array.
            part: Array. The part that this rank owns.
            root: Int. The rank that needs the result, which is undefined on others. Defaults to `None`: all need it.
            memory: `SnapshotMemory`. Allocates the result. Defaults to `None`: NumPy does.
        """
        is_taker = root in (self._exchange.communicator.rank, None)
        sliced = self.slices.get(index) or self.groups.get(index)
        if sliced is None:
            return self._unite(index, part, root, memory)
        if index in self.slices:
            whole = sliced.collect(part, root, memory)
        else:
            whole = self._unite(index, part, root, None)
            if is_taker:  # as are the other ranks of its group
                whole = sliced.collect(whole.reshape(sliced.part_shape), memory=memory)
        return whole.reshape(-1) if is_taker else np.empty(math.prod(sliced.shape), whole.dtype)

    def _unite(self, index: int, part: np.ndarray, root: int | None, memory: Memory | None) -> np.ndarray:
        """Implement `collect` for an array in a bucket."""
        communicator, part = self._exchange.communicator, np.ascontiguousarray(part)
        others = [rank for rank in range(communicator.size) if rank != communicator.rank]
        takers = [rank for rank in others if root in (rank, None)]
        parts = [all_parts[index] for all_parts in self.all_parts]
        is_taker = root in (communicator.rank, None)
        empty = memory.empty if is_taker and memory is not None else np.empty
        whole = empty(max(span.stop for span in parts), part.dtype)
        requests = []
        if is_taker:
            whole[parts[communicator.rank]] = part
            requests += [communicator.ireceive(whole[parts[rank]], rank) for rank in others if whole[parts[rank]].size]
        if part.size:
            requests += [communicator.isend(part, rank) for rank in takers]
        for request in requests:
            request.wait()
        return whole


def _nearest_edge(bucket: buckets.Bucket, element: int) -> int:
    """Return the start of a slot, or the vector's end, whichever is nearest to an element."""
    return min([*(slot.start for slot in bucket.slots), bucket.length], key=lambda edge: abs(edge - element))


def length_of(part: slice) -> tuple[int]:
    """Return the shape of a part of a flat variable."""
    return (part.stop - part.start,)
