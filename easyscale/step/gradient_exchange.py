"""What is called once a step: the exchange of one list of gradients.

Gradients come in as views of the backend's memory, are copied once, into buckets, and go back as views of the buckets:
no other copy is made. Gradients that are a few rows of a large matrix travel as rows.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from easyscale.communicator.data_axis import make_alike
from easyscale.exchange import Exchange
from easyscale.layout.bucket import Bucket, lend, plan
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Variable
from easyscale.step.agreement import Agreed, Purpose, signature
from easyscale.step.background import Background
from easyscale.step.compressed_sums import CompressedSums
from easyscale.step.owned_parts import length_of
from easyscale.step.route import Owned, Route, Signature
from easyscale.step.shared import Shared
from easyscale.step.statistics import describe
from easyscale.timeline import Part

__all__ = ["GradientExchange"]


class GradientExchange:
    """Averages one list of gradients over workers.

    With `bucket_bytes` gradients leave while the backward pass still computes others: the last layer's first, in one
    order on all workers. What is sent is done by a thread beside the graph, one vector after the other.

    Args:
        exchange: The `Exchange`.
        shared: The `Shared` of its communicator.
        specs: The `Signature`.
        variables: The variables that the gradients belong to: those of dense, of sparse ones, and of slices.
        positions: For each of these variables its position among those of a step.
        moving: The variables of the moving statistics.
        bucket_bytes: Int or `None`. See `plan` of `easyscale/layout/bucket.py`.
        densify: Bool. Whether rows may travel as a whole matrix where that is less.
        owned: `Owned`, if each worker gets only what it owns; else `None`.
        sums: `CompressedSums`, if gradients travel in another form. Defaults to `None`.

    Attributes:
        routes: List of `Route`. The last one leaves first.
        overlaps: Bool. Whether gradients leave in pieces.

    Reference: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", 2020, section 3.2.
    """

    _begun: "Future[tuple[float, list[np.ndarray]]]"  # in a step in pieces: this worker's share, and its vectors
    _sent: list[Future[None]]

    def __init__(
        self,
        exchange: Exchange,
        shared: Shared,
        specs: Signature,
        variables: Sequence[Variable],
        positions: Sequence[int],
        moving: Sequence[Variable],
        bucket_bytes: int | None,
        densify: bool,
        owned: Owned | None,
        sums: CompressedSums | None = None,
    ):
        self._exchange, self._shared, self.specs, self._densify = exchange, shared, specs, densify
        self._timeline = shared.timeline
        self.variables, self.positions, self.moving = variables, positions, moving
        self._descriptions = specs.descriptions
        self.signature = signature([*self._descriptions, str(specs.variables)])
        self._bucket_bytes, self._owned = bucket_bytes, owned
        self._sums = None if exchange.travels_by == "memory" else sums
        self._find_routes()

    def divide(self, shards: Shards) -> None:
        """If each worker gets only what it owns: take what that is now. A step must be traced after this."""
        if self._owned is not None:
            self._owned = Owned(shards, self._owned.numbers)
        self._find_routes()

    def _find_routes(self) -> None:
        self.idle_step: Any = None  # a graph, which takes the gradients of slices
        self.routes = self._plan()
        self.overlaps = self._bucket_bytes is not None and len(self.routes) > 1 and not self.specs.accumulates

    def _plan(self) -> list[Route]:
        routes: list[Route] = []
        first, groups = 0, [self.specs.dense + self.specs.moving]

        def add(bucket: Bucket, positions: dict[int, int], move: Callable, take: Callable, alike: slice | None) -> None:
            own = {slot.index: positions[slot.index] for slot in bucket.slots if slot.index in positions}
            if own:
                is_moving = min(own.values()) >= len(self.specs.dense)
                way = (None if is_moving else self._compressed(bucket, own)) or move
                if alike is not None:
                    way = functools.partial(self._move_alike, way, alike)
                routes.append(Route(bucket, own, way, take, is_moving))

        if self._owned is not None:
            shards, numbers = self._owned
            positions = {number: position for position, number in enumerate(numbers)}
            for bucket, alike in zip(shards.buckets, shards.alike(), strict=True):
                add(bucket, positions, self._exchange.reduce, functools.partial(shards.own_parts, bucket), alike)
            first, groups = len(numbers), [self.specs.moving]
        elif self.specs.accumulates or self._sums is not None:
            groups = [self.specs.dense, self.specs.moving]
        for group in groups:
            positions = {index: first + index for index in range(len(group))}
            for bucket in plan(group, self._bucket_bytes):
                add(bucket, positions, self._exchange.allreduce, bucket.unpack, slice(None))
            first += len(group)
        return routes

    def _move_alike(self, move: Callable[[np.ndarray], None], alike: slice, vector: np.ndarray) -> None:
        move(vector)
        make_alike(self._exchange.communicator, vector[alike])

    def _compressed(self, bucket: Bucket, positions: Mapping[int, int]) -> Callable[[np.ndarray], None] | None:
        if self._sums is None:
            return None
        numbers = {index: self.specs.variables[position] for index, position in positions.items()}
        return self._sums.way(self._exchange, bucket, numbers, gathers=self._owned is None)

    def __call__(
        self,
        weight: Any,
        losses: Sequence[Any],
        data: Sequence[Any],
        due: Any,
        tensors: Sequence[Any],
        came: Any = None,
    ) -> list[Any]:
        """Return the means, as tensors.

        Args:
            weight: The number of samples in this worker's gradients, a float64.
            losses: Scalars that are finite as long as this worker's losses are.
            data: Vectors with which this worker's batch begins.
            due: Bool. Whether gradients are exchanged in this step, or only added to what has been accumulated.
            tensors: Dense gradients, moving statistics; if it accumulates, what has been accumulated so far for each
                dense gradient; then, for each sparse gradient, the values of its rows and their int64 indices.
            came: When the batch has come, a float64; see `Timeline.came`. Defaults to `None`: it is not recorded.

        Returns:
            Dense gradients, moving statistics, values and indices of sparse gradients, and whether there was an
            exchange.
        """
        if self.overlaps:
            self.begin(weight, losses, data, tensors, came)
            return self.finish(tensors[len(self.specs.dense + self.specs.moving) :])
        inputs, watched, known = self._inputs(weight, losses, data, came), len(losses), len(losses) + len(data)
        timeline, stay = self._timeline, self._exchange.on_gpus

        def step(due: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            timeline.came(*arrays[1 + known : len(inputs)])
            timeline.to(Part.WAIT)
            agreed = self._agree(float(arrays[0]), arrays[1 : 1 + watched], arrays[1 + watched : 1 + known])
            results = self._step(agreed, due, arrays[len(inputs) :])
            timeline.to(Part.UPDATE)
            return results

        return self._shared.call(step, [due, *inputs, *tensors], self._results(), len(tensors) if stay else 0)

    def begin(
        self, weight: Any, losses: Sequence[Any], data: Sequence[Any], tensors: Sequence[Any], came: Any = None
    ) -> None:
        """Let gradients leave, each when it is there; see `__call__`. `finish` must follow, also in another graph."""
        watched, known, timeline = len(losses), len(losses) + len(data), self._timeline

        def begin(*arrays: np.ndarray) -> None:
            timeline.came(*arrays[1 + known :])
            copies = [np.array(array) for array in arrays[: 1 + known]]  # the graph's memory is its own after this
            self.start(lambda: copies, watched)

        self._shared.call(begin, self._inputs(weight, losses, data, came), [])
        for number, route in reversed(list(enumerate(self.routes))):
            selected = route.select(tensors)
            stay = len(selected) if self._exchange.on_gpus else 0
            self._shared.call(functools.partial(self._send, number), selected, [], stay)

    def finish(self, rows: Sequence[Any] = ()) -> list[Any]:
        """Return, as `__call__` does, what has come, given values and indices of rows. Defaults to none."""
        return self._shared.call(self._finish, list(rows), self._results())

    @staticmethod
    def _inputs(weight: Any, losses: Sequence[Any], data: Sequence[Any], came: Any) -> list[Any]:
        return [weight, *losses, *data, *([] if came is None else [came])]

    def _results(self) -> list[tuple[Sequence[int | None], np.dtype]]:
        """Shape and dtype of what `__call__` returns."""
        results: list[tuple[Sequence[int | None], np.dtype]] = [*self.specs.dense, *self.specs.moving]
        if self._owned is not None:
            parts = [self._owned.shards.parts[number] for number in self._owned.numbers]
            own = zip(parts, self.specs.dense, strict=True)
            results[: len(parts)] = [(length_of(part), dtype) for part, (_, dtype) in own]
        for shape, dtype in self.specs.sparse:
            results += [((None, *shape[1:]), dtype), ((None,), np.dtype("int64"))]
        return [*results, ((), np.dtype("bool"))]

    def _step(self, agreed: Agreed, due: np.ndarray, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """A step in one piece, behind the backward pass."""
        is_skipped = np.isnan(agreed.share)
        exchanges = bool(due) and not is_skipped
        gradients, count = len(self.specs.dense), len(self.specs.dense) + len(self.specs.moving)
        flat, rest = arrays[:count], arrays[count:]
        accumulated, rows = (rest[:gradients], rest[gradients:]) if self.specs.accumulates else ((), rest)
        self._timeline.to(Part.EXCHANGE)
        vectors = []
        for route, vector in zip(self.routes, self._lend(), strict=True):
            self._timeline.to(Part.PACK)
            route.pack(route.select(flat), vector, agreed.share)
            if exchanges and not route.is_moving:
                route.bucket.add(accumulated, vector)
            self._timeline.to(Part.EXCHANGE)
            if exchanges or (route.is_moving and not is_skipped):
                route.move(vector)
            vectors.append(vector)
        self._timeline.to(Part.PACK)
        results = self._take(vectors)
        if is_skipped:
            results[gradients:] = flat[gradients:]
        return [*results, *self._gather_rows(rows, agreed.share), np.array(exchanges)]

    # A step in pieces, between which the backward pass goes on

    def start(self, come: Callable[[], Sequence[np.ndarray]], watched: int) -> None:
        """Begin to agree with the others, in the thread beside, on what `send` sends.

        When they are there, `come()` returns the weight, so many `watched` losses, and the beginnings of the batch.
        """

        def begin() -> tuple[float, list[np.ndarray]]:
            weight, *known = come()
            return self._agree(float(weight), known[:watched], known[watched:]).share, self._lend()

        self._begun = self._shared.background.submit(self._timeline.beside(Part.WAIT, begin, Background.NAME))
        self._sent = []

    def send(self, number: int, come: Callable[[], Sequence[np.ndarray]]) -> None:
        """Let what `come()` returns, when it is there, leave by the route of this number, in the thread beside."""
        route = self.routes[number]

        def send() -> None:
            share, vectors = self._begun.result()
            route.pack(come(), vectors[number], share)
            route.move(vectors[number])

        self._sent.append(self._shared.background.submit(self._timeline.beside(Part.EXCHANGE, send, Background.NAME)))

    def _send(self, number: int, *arrays: np.ndarray) -> None:
        before = self._timeline.to(Part.WAIT)
        share, vectors = self._begun.result()
        self._timeline.to(Part.PACK)
        route, vector = self.routes[number], vectors[number]
        route.pack(arrays, vector, share)
        move = self._timeline.beside(Part.EXCHANGE, route.move, Background.NAME)
        self._sent.append(self._shared.background.submit(move, vector))
        self._timeline.to(before)

    def _finish(self, *rows: np.ndarray) -> list[np.ndarray]:
        self._timeline.to(Part.WAIT)
        share, vectors = self._begun.result()
        self._timeline.to(Part.EXCHANGE)
        for future in self._sent:
            future.result()
        del self._begun, self._sent  # lent memory goes back
        self._timeline.to(Part.PACK)
        results = [*self._take(vectors), *self._gather_rows(rows, share), np.array(True)]
        self._timeline.to(Part.UPDATE)
        return results

    def _lend(self) -> list[np.ndarray]:
        return lend([route.bucket for route in self.routes], self._exchange)

    def _take(self, vectors: list[np.ndarray]) -> list[np.ndarray]:
        results: dict[int, np.ndarray] = {}
        for route, vector in zip(self.routes, vectors, strict=True):
            came = route.take(vector)
            results |= {position: came[index] for index, position in route.positions.items()}
        return [results[position] for position in range(len(results))]

    def _agree(self, weight: float, losses: Sequence[np.ndarray], data: Sequence[np.ndarray]) -> Agreed:
        agreed, self._shared.agreed = self._shared.agreed, None
        if agreed is None:
            batch = 0.0 if self._shared.same_batch is not None else describe(data)
            batch = batch if all(map(math.isfinite, losses)) else math.nan
            agreed = self._shared.meet(Purpose.GRADIENTS, self.signature, weight, batch, self._descriptions)
        if self._shared.same_batch is None:
            self._shared.same_batch = agreed.same_batch
        return agreed

    # Sparse gradients

    def _gather_rows(self, rows: Sequence[np.ndarray], share: float) -> list[np.ndarray]:
        """Return every sparse gradient's rows, those of all ranks in the order of ranks, and their indices.

        A row that several samples touch comes several times, as it does on one worker: some of Keras's optimizers make
        of that another step than of its sum.
        """
        if not rows:
            return []
        self._timeline.to(Part.EXCHANGE)
        communicator = self._exchange.communicator
        sliced = () if self._owned is None else self._owned.sliced(self.positions[len(self.specs.dense) :])
        counts = communicator.all_gather_rows(np.array([values.shape[0] for values in rows[::2]]))
        results = []
        for number, (shape, _) in enumerate(self.specs.sparse):
            values, indices = rows[2 * number], rows[2 * number + 1]
            wide = np.promote_types(values.dtype, "float32")
            values = np.multiply(values, share, dtype=wide).astype(values.dtype) if values.size else values
            if number not in sliced:
                make_alike(communicator, values)
            size, width = math.prod(shape), math.prod(shape[1:])  # the same on all ranks, also on one without rows
            whole = 2 * size * values.itemsize // communicator.size
            if self._densify and counts[:, number].max() * (width * values.itemsize + indices.itemsize) >= whole > 0:
                matrix = self._exchange.allocate(size, values.dtype)
                np.add.at(matrix.reshape(shape), indices, values)
                self._exchange.allreduce(matrix)
                results += [matrix.reshape(shape), np.arange(shape[0])]
            else:
                results += [
                    communicator.all_gather_parts(part, counts[:, number].tolist()) for part in (values, indices)
                ]
        return results
