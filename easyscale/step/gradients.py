"""What becomes of all workers' gradients, seen from the step of one of them: reduce, update, gather."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from easyscale.backend.base import CompiledUpdate
from easyscale.communicator.data_axis import everyone_of
from easyscale.exchange import Exchange
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Variable, specs_of
from easyscale.step import owned_parts
from easyscale.step.accumulation import Accumulation
from easyscale.step.agreement import Agreed, Purpose
from easyscale.step.compressed_sums import CompressedSums
from easyscale.step.exchanges_of_gradients import ExchangesOfGradients
from easyscale.step.interfaces import Apply, ApplyInStep, Gradient, GradientSync, StepContext, Tensor
from easyscale.step.late_gather import LateGather
from easyscale.step.owned_slices import OwnedSlices
from easyscale.step.ready_buckets import EarlyGradients
from easyscale.step.route import Signature
from easyscale.step.shared import Shared
from easyscale.step.way import Way

__all__ = ["Gradients"]


class Gradients(GradientSync):
    """The gradients of one optimizer, which all workers exchange.

    Args:
        way: The `Way` on which they travel.
        shared: The `Shared` of its communicator.
        densify: Bool. Whether sparse gradients may travel as dense ones where that is less.
        compiled: The backend's `CompiledUpdate`.

    Attributes:
        way: The same.
    """

    def __init__(self, way: Way, shared: Shared, densify: bool, compiled: CompiledUpdate):
        self.way, self.slices = way, OwnedSlices()
        self.communicator, self._shared, self._tensors = way.exchange.communicator, shared, shared.backend.tensors
        self._compiled = compiled
        self._exchanges = ExchangesOfGradients(way, shared, densify, self.slices)
        self.early = EarlyGradients(way, shared, self._exchanges)

    @property
    def exchange(self) -> Exchange:
        return self.way.exchange

    @property
    def bucket_bytes(self) -> int | None:
        """About the size of the vectors that gradients travel in; `None`: one for each dtype."""
        return self.way.bucket_bytes

    @property
    def sums(self) -> CompressedSums | None:
        return self.way.sums

    def choose(self, variables: Sequence[Variable]) -> None:
        if self.way.choice is None:
            self.way.choose(specs_of([variable for variable in variables if variable not in self.slices]))

    def shard(self, variables: Sequence[Variable], whole: bool = False) -> Shards:
        slices, groups = self.slices.numbered(variables), self.slices.groups.numbered(variables)
        shards = Shards(self.exchange, specs_of(variables), self.bucket_bytes, whole, slices, groups)
        self._exchanges.divide(shards)
        self._compiled.forget()
        return shards

    def reduce(
        self,
        context: StepContext,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        accumulation: Accumulation | None = None,
        shards: Shards | None = None,
    ) -> list[Gradient]:
        tensors = self._tensors
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        if everyone_of(self.communicator).size == 1 or not present:
            return list(gradients) if shards is None else list(map(tensors.part_of, gradients, shards.parts))
        self.choose(variables)
        slices = [index for index in present if variables[index] in self.slices]
        sparse = [index for index in present if tensors.is_rows(gradients[index])]
        in_rows = [index for index in sparse if index not in slices and accumulation is None]
        dense = [index for index in present if index not in (*slices, *in_rows)]
        indices = dense, in_rows, slices
        exchange = self._exchanges.of(context, gradients, variables, indices, accumulation is not None, shards)

        inputs = [tensors.whole(gradients[index]) for index in dense]
        weight, due = context.weight, True
        if accumulation is not None:
            due = accumulation.due
            if accumulation.may_overflow:
                weight = tensors.nan_unless_finite(weight, inputs)
        inputs += map(tensors.whole, context.moving)
        if accumulation is not None:
            sums = [tensors.whole(accumulation.gradients[index]) for index in dense]
            inputs += [self._shared.backend.scaled(total, accumulation.scale) for total in sums]
        for index in in_rows:
            inputs += tensors.values_and_indices(gradients[index])
        if accumulation is None:
            self.early.remember(variables, shards)
        else:
            self.early.forget()
        if (ready := self.early.take()) is None:
            *means, exchanged = exchange(weight, context.losses, context.data, due, inputs, context.came)
        else:
            *means, exchanged = ready.finish(exchange, inputs)

        averaged = list(gradients)
        for index in dense:
            averaged[index] = means.pop(0)
        for variable in context.moving:
            variable.assign(means.pop(0))
        for index in in_rows:
            averaged[index] = tensors.rows(means.pop(0), means.pop(0), tuple(variables[index].shape))
            if shards is not None:
                averaged[index] = tensors.part_of(averaged[index], shards.parts[index])
        if accumulation is not None:

            def forget() -> None:
                for index in dense:
                    accumulation.gradients[index].assign(
                        tensors.zeros(self._exchanges.spec(variables[index], averaged[index]))
                    )

            tensors.if_true(exchanged, forget)
        return averaged

    def begin_reduce(
        self, context: StepContext, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> Callable[[], list[Gradient]]:
        self.choose(variables)
        all_dense: tuple[list[int], list[int], list[int]] = list(range(len(gradients))), [], []
        exchange = self._exchanges.of(context, gradients, variables, all_dense, False, None)
        tensors = list(map(self._tensors.whole, [*gradients, *context.moving]))
        exchange.begin(context.weight, context.losses, context.data, tensors)
        return lambda: exchange.finish()[: len(tensors)]

    def update(
        self, apply: Apply, gradients: Sequence[Gradient], variables: Sequence[Variable], compiles: bool = False
    ) -> None:
        self._compiled(apply, gradients, variables, compiles)

    def forget_updates(self) -> None:
        self._compiled.forget()

    def gather(
        self,
        shards: Shards,
        parts: Mapping[int, Variable],
        variables: Sequence[Variable],
        late: LateGather | None = None,
    ) -> None:
        if late is None:
            owned_parts.gather(self.communicator, self._shared, shards, parts, variables, self.exchange.on_gpus)
        else:
            late.send(parts)

    def late_gather(self, shards: Shards, variables: Sequence[Variable]) -> LateGather | None:
        communicator = self.communicator
        goes_on = communicator.membership.is_elastic  # without a worker that has failed, or a server's weights
        is_one = self.bucket_bytes is None or len(shards.buckets) <= 1 or self.exchange.on_gpus
        if is_one or goes_on or communicator.servers:
            return None
        return LateGather(self._shared, shards, variables)

    def total_of_squares(self, tensors: Sequence[Gradient], in_groups: Sequence[bool] = ()) -> Tensor:
        return owned_parts.total_of_squares(self.communicator, self._shared, tensors, in_groups)

    def on_state(self, collect: Callable[[], list[np.ndarray]]) -> Callable[[], list[np.ndarray]]:
        return self._shared.on_state(collect)

    def join(self, agreed: Agreed, apply: ApplyInStep) -> bool:
        """Take part with weight zero in what other workers do inside a step.

        Args:
            agreed: What `meet` returned.
            apply: The function that averages gradients by this object and updates variables with them.

        Returns:
            Whether it is something of this optimizer's.
        """
        if agreed.purpose == Purpose.ROWS:
            self.communicator.all_gather_rows(np.zeros(agreed.detail))
            return True
        exchange = self._exchanges.by_signature.get(agreed.detail)
        if exchange is None:
            return False
        if exchange.idle_step is None:
            context, positions = StepContext(moving=exchange.moving), exchange.positions
            order = sorted(range(len(positions)), key=positions.__getitem__)  # as in the others' step: clipping sums so
            variables = [exchange.variables[position] for position in order]

            def idle_step(of_slices: list[Gradient]) -> None:
                gradients = [*self._nothing(exchange.specs), *of_slices]
                apply(context, [gradients[position] for position in order], variables)

            exchange.idle_step = self._shared.backend.graph(idle_step)
        slices = exchange.variables[len(exchange.variables) - len(exchange.specs.slices) :]
        of_slices = [self.slices.take(variable) for variable in slices]
        self._shared.agreed = agreed
        exchange.idle_step(of_slices)
        return True

    def _nothing(self, specs: Signature) -> list[Gradient]:
        """Return gradients that are zero, dense ones and then those without rows; none of slices."""
        zeros: list[Gradient] = list(map(self._tensors.zeros, specs.dense))
        return zeros + list(map(self._tensors.no_rows, specs.sparse))
