"""The exchange of one plan's arrays: called once a step, from a graph or from a thread.

Gradients arrive as views of the backend's memory, are copied once, into vectors, and are returned as views of the
vectors: no other copy is made. Sparse gradients are sent as rows.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from easyscale.communicator.data_axis import make_alike
from easyscale.layout.bucket import Bucket, lend
from easyscale.layout.bucket import plan as plan_buckets
from easyscale.layout.shards import Shards, length_of
from easyscale.layout.specs import Variable
from easyscale.step.agreement import Agreed, Purpose
from easyscale.step.background import Background
from easyscale.step.plan import Kind, Plan, Reduced, StepArrays, Vector, flat, like
from easyscale.step.reduce_config import ReduceConfig
from easyscale.step.shared import Shared
from easyscale.step.statistics import describe
from easyscale.timeline import Part

__all__ = ["Reducer"]


class Reducer:
    """Averages the arrays of one plan over workers.

    With `bucket_bytes`, gradients are sent while the backward pass still computes others: the last layer's first, in
    the same order on all workers. A background thread sends them, one vector at a time.

    Args:
        plan: The `Plan`.
        variables: The variables of the plan's gradients.
        moving: The variables of the moving statistics.
        config: The `ReduceConfig`: exchange, bucket size and compression.
        shared: The `Shared` of its communicator.
        densify: Bool. Whether rows may be sent as a whole matrix where that is fewer bytes.
        shards: The `Shards`, if the plan is sharded; else `None`.

    Attributes:
        vectors: List of `Vector`. The last one is sent first.
        overlaps: Bool. Whether vectors are sent one by one during the backward pass.
        idle_step: A graph that takes part in a step without data; `None` until it is made.

    Reference: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", 2020, section 3.2.
    """

    _begun: "Future[tuple[float, list[np.ndarray]]]"  # in an overlapped step: this worker's share, and its vectors
    _sent: list[Future[None]]

    def __init__(
        self,
        plan: Plan,
        variables: Sequence[Variable],
        moving: Sequence[Variable],
        config: ReduceConfig,
        shared: Shared,
        densify: bool,
        shards: Shards | None,
    ):
        self.plan, self.variables, self.moving = plan, variables, moving
        self._exchange, self._bucket_bytes = config.exchange, config.bucket_bytes
        self._sums = None if config.exchange.travels_by == "memory" else config.sums
        self._shared, self._timeline, self._densify = shared, shared.timeline, densify
        self._joined: Agreed | None = None
        if self._sums is not None:
            self._sums.warn_of_none([entry.spec for entry in plan.of(Kind.DENSE)])
        self.divide(shards)

    def divide(self, shards: Shards | None) -> None:
        """Use these shards from now on, if the plan is sharded. Steps must be retraced after this."""
        self._shards = shards if self.plan.sharded else None
        self.idle_step: Any = None
        self.vectors = self._lay_out()
        self.overlaps = self._bucket_bytes is not None and len(self.vectors) > 1 and not self.plan.accumulates

    def _lay_out(self) -> list[Vector]:
        summed, dense, exchange = self.plan.summed, len(self.plan.of(Kind.DENSE)), self._exchange
        vectors: list[Vector] = []

        def add(bucket: Bucket, own: dict[int, int], move: Callable, take: Callable, alike: slice | None) -> None:
            own = {slot.index: own[slot.index] for slot in bucket.slots if slot.index in own}
            if not own:
                return
            is_moving = min(own.values()) >= dense
            move = (None if is_moving else self._compressed(bucket, own)) or move
            if alike is not None:
                move = functools.partial(self._move_alike, move, alike)
            vectors.append(Vector(bucket, own, move, take, is_moving))

        apart = self.plan.accumulates or self._sums is not None  # moving statistics are in separate vectors
        groups = [range(dense), range(dense, len(summed))] if apart else [range(len(summed))]
        if self._shards is not None:
            numbers = {entry.position: index for index, entry in enumerate(summed[:dense])}
            for bucket, alike in zip(self._shards.buckets, self._shards.alike(), strict=True):
                add(bucket, numbers, exchange.reduce, functools.partial(self._shards.own_parts, bucket), alike)
            groups = [range(dense, len(summed))]
        for group in groups:
            for bucket in plan_buckets([summed[index].spec for index in group], self._bucket_bytes):
                add(bucket, dict(enumerate(group)), exchange.allreduce, bucket.unpack, slice(None))
        return vectors

    def _move_alike(self, move: Callable[[np.ndarray], None], alike: slice, vector: np.ndarray) -> None:
        move(vector)
        make_alike(self._exchange.communicator, vector[alike])

    def _compressed(self, bucket: Bucket, own: Mapping[int, int]) -> Callable[[np.ndarray], None] | None:
        if self._sums is None:
            return None
        variables = {index: self.plan.summed[entry].variable for index, entry in own.items()}
        return self._sums.way(self._exchange, bucket, variables, gathers=self._shards is None)

    def __call__(self, step: StepArrays) -> Reduced:
        """Return the means of a step's arrays, as tensors."""
        if self.overlaps:
            self.begin(step)
            return self.finish(step)
        timeline, stay = self._timeline, self._exchange.on_gpus

        def reduce(*given: np.ndarray) -> list[np.ndarray]:
            arrays = like(step, given)
            timeline.came(*arrays.came)
            timeline.to(Part.WAIT)
            agreed = self._agree(arrays)
            reduced = self._reduce(agreed, arrays)
            timeline.to(Part.UPDATE)
            return flat(reduced)

        on_gpu = len(step.summed) + len(step.accumulated) + 2 * len(step.values) if stay else 0
        return self._named(self._shared.call(reduce, flat(step), self._results(), on_gpu))

    def join(self, agreed: Agreed, idle_step: Callable[[], Any]) -> None:
        """Run a step without data, on which the ranks have already agreed.

        Args:
            agreed: The result of `meet`.
            idle_step: Function without arguments. Calls this object.
        """
        self._joined = agreed
        try:
            idle_step()
        finally:
            self._joined = None

    def begin(self, step: StepArrays) -> None:
        """Start to send gradients, each when it is ready. `finish` must follow, perhaps in another graph."""
        known = StepArrays(step.weight, step.losses, step.data, step.came, due=())

        def begin(*given: np.ndarray) -> None:
            arrays = like(known, [np.array(one) for one in given])  # the graph may reuse its memory after this
            self._timeline.came(*arrays.came)
            self.start(lambda: arrays)

        self._shared.call(begin, flat(known), [])
        for number, vector in reversed(list(enumerate(self.vectors))):
            selected = vector.select(step.summed)
            stay = len(selected) if self._exchange.on_gpus else 0
            self._shared.call(functools.partial(self._send, number), selected, [], stay)

    def finish(self, step: StepArrays) -> Reduced:
        """Exchange the rows of a step that `begin` started, and return all its means."""
        rows = step._replace(weight=(), losses=(), data=(), came=(), due=(), summed=(), accumulated=())

        def finish(*given: np.ndarray) -> list[np.ndarray]:
            return flat(self._finish(like(rows, given)))

        return self._named(self._shared.call(finish, flat(rows), self._results()))

    def _named(self, tensors: Sequence[Any]) -> Reduced:
        rows = [None] * len(self.plan.of(Kind.ROWS))
        return like(Reduced([None] * len(self.plan.summed), rows, rows, None), tensors)

    def _results(self) -> list[tuple[Sequence[int | None], np.dtype]]:
        """Return shape and dtype of each array of `Reduced`."""
        shards, rows = self._shards, [entry.spec for entry in self.plan.of(Kind.ROWS)]
        summed = [
            (length_of(shards.parts[one.position]), one.spec.dtype)
            if shards is not None and one.kind is Kind.DENSE
            else one.spec
            for one in self.plan.summed
        ]
        values = [((None, *shape[1:]), dtype) for shape, dtype in rows]
        indices = [((None,), np.dtype("int64"))] * len(rows)
        return [*summed, *values, *indices, ((), np.dtype("bool"))]

    def _reduce(self, agreed: Agreed, step: StepArrays) -> Reduced:
        """Exchange all arrays of a step after the backward pass."""
        is_skipped = np.isnan(agreed.share)
        exchanges = bool(step.due) and not is_skipped
        self._timeline.to(Part.EXCHANGE)
        vectors = []
        for layout, vector in zip(self.vectors, self._lend(), strict=True):
            self._timeline.to(Part.PACK)
            layout.pack(layout.select(step.summed), vector, agreed.share)
            if exchanges and not layout.is_moving:
                layout.bucket.add(step.accumulated, vector)
            self._timeline.to(Part.EXCHANGE)
            if exchanges or (layout.is_moving and not is_skipped):
                layout.move(vector)
            vectors.append(vector)
        self._timeline.to(Part.PACK)
        summed = self._take(vectors)
        if is_skipped:
            dense = len(self.plan.of(Kind.DENSE))
            summed[dense:] = step.summed[dense:]
        return Reduced(summed, *self._gather_rows(step, agreed.share), np.array(exchanges))

    # An overlapped step: the backward pass continues between vectors

    def start(self, come: Callable[[], StepArrays]) -> None:
        """Start to agree with the other ranks, in the background, on the step that `come()` waits for and returns."""

        def begin() -> tuple[float, list[np.ndarray]]:
            return self._agree(come()).share, self._lend()

        self._begun = self._shared.background.submit(self._timeline.beside(Part.WAIT, begin, Background.NAME))
        self._sent = []

    def send(self, number: int, come: Callable[[], Sequence[np.ndarray]]) -> None:
        """Send, in the background, the vector of this number with the arrays that `come()` waits for and returns."""
        layout = self.vectors[number]

        def send() -> None:
            share, vectors = self._begun.result()
            layout.pack(come(), vectors[number], share)
            layout.move(vectors[number])

        self._sent.append(self._shared.background.submit(self._timeline.beside(Part.EXCHANGE, send, Background.NAME)))

    def _send(self, number: int, *arrays: np.ndarray) -> None:
        before = self._timeline.to(Part.WAIT)
        share, vectors = self._begun.result()
        self._timeline.to(Part.PACK)
        layout, vector = self.vectors[number], vectors[number]
        layout.pack(arrays, vector, share)
        move = self._timeline.beside(Part.EXCHANGE, layout.move, Background.NAME)
        self._sent.append(self._shared.background.submit(move, vector))
        self._timeline.to(before)

    def _finish(self, rows: StepArrays) -> Reduced:
        self._timeline.to(Part.WAIT)
        share, vectors = self._begun.result()
        self._timeline.to(Part.EXCHANGE)
        for future in self._sent:
            future.result()
        del self._begun, self._sent  # returns the lent memory
        self._timeline.to(Part.PACK)
        reduced = Reduced(self._take(vectors), *self._gather_rows(rows, share), np.array(True))
        self._timeline.to(Part.UPDATE)
        return reduced

    def _lend(self) -> list[np.ndarray]:
        return lend([vector.bucket for vector in self.vectors], self._exchange)

    def _take(self, vectors: list[np.ndarray]) -> list[np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for layout, vector in zip(self.vectors, vectors, strict=True):
            arrays = layout.take(vector)
            found |= {entry: arrays[index] for index, entry in layout.entries.items()}
        return [found[entry] for entry in range(len(found))]

    def _agree(self, step: StepArrays) -> Agreed:
        if (agreed := self._joined) is None:
            batch = 0.0 if self._shared.same_batch is not None else describe(step.data)
            batch = batch if all(map(math.isfinite, step.losses)) else math.nan
            plan = self.plan
            agreed = self._shared.meet(Purpose.GRADIENTS, plan.hash, float(step.weight), batch, plan.descriptions)
        if self._shared.same_batch is None:
            self._shared.same_batch = agreed.same_batch
        return agreed

    # Sparse gradients

    def _gather_rows(self, step: StepArrays, share: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the rows of each sparse gradient, from all ranks in rank order, and their row numbers.

        A row that several samples touch appears several times, as on one worker: some Keras optimizers take a different
        step for its sum.
        """
        all_values: list[np.ndarray] = []
        all_indices: list[np.ndarray] = []
        if not step.values:
            return all_values, all_indices
        self._timeline.to(Part.EXCHANGE)
        communicator = self._exchange.communicator
        groups = () if self._shards is None else self._shards.groups  # slices, which differ within a group
        counts = communicator.all_gather_rows(np.array([values.shape[0] for values in step.values]))
        for entry, column, values, indices in zip(
            self.plan.of(Kind.ROWS), counts.T, step.values, step.indices, strict=True
        ):
            shape = entry.spec.shape
            wide = np.promote_types(values.dtype, "float32")
            values = np.multiply(values, share, dtype=wide).astype(values.dtype) if values.size else values
            if entry.position not in groups:
                make_alike(communicator, values)
            size, width = math.prod(shape), math.prod(shape[1:])  # the same on all ranks, even on one without rows
            whole = 2 * size * values.itemsize // communicator.size
            if self._densify and column.max() * (width * values.itemsize + indices.itemsize) >= whole > 0:
                matrix = self._exchange.allocate(size, values.dtype)
                np.add.at(matrix.reshape(shape), indices, values)
                self._exchange.allreduce(matrix)
                values, indices = matrix.reshape(shape), np.arange(shape[0])
            else:
                values, indices = (communicator.all_gather_parts(part, column.tolist()) for part in (values, indices))
            all_values.append(values)
            all_indices.append(indices)
        return all_values, all_indices
