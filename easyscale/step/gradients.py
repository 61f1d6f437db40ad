"""The three operations of a step, called from its graph: reduce, update, gather."""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from easyscale.backend.base import CompiledUpdate
from easyscale.communicator.data_axis import everyone_of, group_of
from easyscale.exchange import Exchange
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Spec, Variable, specs_of
from easyscale.step.agreement import Agreed, Purpose
from easyscale.step.compressed_sums import CompressedSums
from easyscale.step.context import Accumulation, Apply, ApplyInStep, Gradient, StepContext, Tensor
from easyscale.step.late_gather import LateGather
from easyscale.step.plan import Entry, Kind, Plan, StepArrays
from easyscale.step.ready_buckets import EarlyGradients
from easyscale.step.reduce_config import ReduceConfig
from easyscale.step.reducer import Reducer
from easyscale.step.shared import Shared
from easyscale.step.slices import Slices
from easyscale.timeline import Part

__all__ = ["Gradients"]


class Gradients:
    """Averages the gradients of one optimizer over all workers, and distributes the new weights.

    Args:
        config: The `ReduceConfig`: exchange, bucket size and compression.
        shared: The `Shared` of its communicator.
        densify: Bool. Whether sparse gradients may be sent as dense ones where that is fewer bytes.
        compiled: The backend's `CompiledUpdate`.

    Attributes:
        config: The same.
        communicator: The `Communicator` between processes.
        slices: The `Slices` of variables that are currently divided over workers.
        groups: The `Slices` of variables that are currently divided over the ranks of each worker.
        early: The `EarlyGradients`, which sends gradients during the backward pass.
    """

    def __init__(self, config: ReduceConfig, shared: Shared, densify: bool, compiled: CompiledUpdate):
        self.config, self.slices, self.groups = config, Slices(), Slices()
        self.communicator, self._shared, self._tensors = config.exchange.communicator, shared, shared.backend.tensors
        self._densify, self._compiled, self._number = densify, compiled, shared.new_number()
        self._reducers: dict[Plan, Reducer] = {}
        self._numbers: dict[int, tuple[int, Variable]] = {}  # by `id()`, which is unique while the variable is kept
        self.early = EarlyGradients(config, shared, self.reducer_of)

    @property
    def exchange(self) -> Exchange:
        """The connected `Exchange` in use."""
        return self.config.exchange

    @property
    def bucket_bytes(self) -> int | None:
        """The approximate size of a bucket of gradients; `None`: one bucket per dtype."""
        return self.config.bucket_bytes

    @property
    def sums(self) -> CompressedSums | None:
        """The `CompressedSums`; `None` if gradients are not compressed."""
        return self.config.sums

    def choose(self, variables: Sequence[Variable]) -> None:
        """Choose, on the first call, what the configuration leaves open. Collective: all workers must call this."""
        if self.config.choice is None:
            self.config.choose(specs_of([variable for variable in variables if variable not in self.slices]))

    def shard(self, variables: Sequence[Variable], whole: bool = False) -> Shards:
        """Divide `variables` among workers, in parts or as `whole` ones. All workers must call this the same way."""
        slices, groups = self.slices.numbered(variables), self.groups.numbered(variables)
        shards = Shards(self.exchange, specs_of(variables), self.bucket_bytes, whole, slices, groups)
        for reducer in self._reducers.values():
            reducer.divide(shards)
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
        """Return the mean of all workers' gradients, in the graph, each weighted by its context's weight.

        Args:
            context: `StepContext`.
            gradients: Tensors, `IndexedSlices`, or `None` for a variable without one.
            variables: The variables they belong to.
            accumulation: `Accumulation`. If given and not due, this worker's own gradients are returned, weighted such
                that their sum over steps and workers is that of the means. Defaults to `None`.
            shards: The `Shards` of the variables. If given, only this worker's parts of the means are returned, flat.
                Defaults to `None`.
        """
        tensors = self._tensors
        if everyone_of(self.communicator).size == 1 or all(gradient is None for gradient in gradients):
            return list(gradients) if shards is None else list(map(tensors.part_of, gradients, shards.parts))
        self.choose(variables)
        plan = self._plan(context, gradients, variables, accumulation is not None, shards is not None)
        reducer = self._reducer(plan, context, variables, shards)
        dense, in_rows = plan.of(Kind.DENSE), plan.of(Kind.ROWS)
        step = self._arrays(plan, context, gradients, accumulation)
        if accumulation is None:
            self.early.remember(variables, shards)
        else:
            self.early.forget()
        ready = self.early.take()
        reduced = reducer(step) if ready is None else ready.finish(reducer, step)

        means = list(gradients)
        for entry, mean in zip(dense, reduced.summed, strict=False):
            means[entry.position] = mean
        for variable, mean in zip(context.moving, reduced.summed[len(dense) :], strict=True):
            variable.assign(mean)
        for entry, values, indices in zip(in_rows, reduced.values, reduced.indices, strict=True):
            mean = tensors.rows(values, indices, entry.spec.shape)
            means[entry.position] = mean if shards is None else tensors.part_of(mean, shards.parts[entry.position])
        if accumulation is not None:

            def forget() -> None:
                for entry in dense:
                    accumulation.gradients[entry.position].assign(tensors.zeros(entry.spec))

            tensors.if_true(reduced.exchanged, forget)
        return means

    def _arrays(
        self, plan: Plan, context: StepContext, gradients: Sequence[Gradient], accumulation: Accumulation | None
    ) -> StepArrays:
        """Return the arrays that a step exchanges according to a plan."""
        tensors = self._tensors
        own = [tensors.whole(gradients[entry.position]) for entry in plan.of(Kind.DENSE)]
        rows = [tensors.values_and_indices(gradients[entry.position]) for entry in plan.of(Kind.ROWS)]
        came = [] if context.came is None else [context.came]
        step = StepArrays(context.weight, list(context.losses), list(context.data), came)
        step = step._replace(summed=[*own, *map(tensors.whole, context.moving)])
        step = step._replace(values=[values for values, _ in rows], indices=[indices for _, indices in rows])
        if accumulation is None:
            return step
        sums = [tensors.whole(accumulation.gradients[entry.position]) for entry in plan.of(Kind.DENSE)]
        scaled = [self._shared.backend.scaled(total, accumulation.scale) for total in sums]
        weight = tensors.nan_unless_finite(step.weight, own) if accumulation.may_overflow else step.weight
        return step._replace(weight=weight, due=accumulation.due, accumulated=scaled)

    def reducer_of(
        self, context: StepContext, gradients: Sequence[Gradient], variables: Sequence[Variable], shards: Shards | None
    ) -> Reducer:
        """Return the `Reducer` of a step that does not accumulate gradients; create it the first time.

        Args:
            context: `StepContext`.
            gradients: The step's gradients.
            variables: The variables they belong to.
            shards: The `Shards`, if each worker receives only the parts that it owns; else `None`.
        """
        plan = self._plan(context, gradients, variables, False, shards is not None)
        return self._reducer(plan, context, variables, shards)

    def _plan(
        self,
        context: StepContext,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        accumulates: bool,
        sharded: bool,
    ) -> Plan:
        """Return the plan of a step, with the positions of its own gradients."""
        kinds = [
            None if gradient is None else self._kind_of(gradient, variable, accumulates)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        by_kind: dict[Kind, list[Entry]] = {kind: [] for kind in (Kind.DENSE, Kind.MOVING, Kind.ROWS, Kind.SLICE)}
        for kind in (Kind.DENSE, Kind.ROWS, Kind.SLICE):  # variables are numbered in this order
            for position in [position for position, found in enumerate(kinds) if found is kind]:
                variable = variables[position]
                # The shape of a slice may differ between ranks, that of the whole does not.
                shape = self.slices.sliced(variable).shape if kind is Kind.SLICE else variable.shape
                spec = Spec(tuple(shape), self._tensors.dtype_of(gradients[position]))
                by_kind[kind].append(Entry(kind, spec, self._number_of(variable), position))
        for position, variable in enumerate(context.moving):
            spec = Spec(tuple(variable.shape), self._tensors.dtype_of(self._tensors.whole(variable)))
            by_kind[Kind.MOVING].append(Entry(Kind.MOVING, spec, position, position))
        entries = tuple(entry for of_kind in by_kind.values() for entry in of_kind)
        return Plan(entries, accumulates, sharded, self._number)

    def _reducer(
        self, plan: Plan, context: StepContext, variables: Sequence[Variable], shards: Shards | None
    ) -> Reducer:
        """Return the `Reducer` of an equal plan, whose gradients may have had other positions in their step."""
        if plan not in self._reducers:
            of_step = [variables[entry.position] for entry in plan.gradients], context.moving
            self._reducers[plan] = Reducer(plan, *of_step, self.config, self._shared, self._densify, shards)
        return self._reducers[plan]

    def _kind_of(self, gradient: Gradient, variable: Variable, accumulates: bool) -> Kind:
        if variable in self.slices:
            return Kind.SLICE
        return Kind.ROWS if self._tensors.is_rows(gradient) and not accumulates else Kind.DENSE

    def _number_of(self, variable: Variable) -> int:
        """Return the number of a variable, in the order of first gradients: the same on all ranks."""
        return self._numbers.setdefault(id(variable), (len(self._numbers), variable))[0]

    def begin_reduce(
        self, context: StepContext, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> Callable[[], list[Gradient]]:
        """Start a `reduce` that continues while the next graphs run.

        No worker may start another exchange, or any other collective call, before this one has finished.

        Args:
            context: `StepContext`.
            gradients: Tensors, one for each variable.
            variables: The variables they belong to.

        Returns:
            Function to be called in another graph. It waits for the means, and returns those of gradients, then those
            of moving statistics, which are not assigned.
        """
        self.choose(variables)
        plan = self._plan(context, gradients, variables, False, False)
        reducer, step = self._reducer(plan, context, variables, None), self._arrays(plan, context, gradients, None)
        reducer.begin(step)
        return lambda: list(reducer.finish(step).summed)

    def update(
        self, apply: Apply, gradients: Sequence[Gradient], variables: Sequence[Variable], compiles: bool = False
    ) -> None:
        """Call `apply(gradients, variables)` in a separate graph. See `CompiledUpdate`."""
        self._compiled(apply, gradients, variables, compiles)

    def forget_updates(self) -> None:
        """Have `update` retrace the functions that it calls, because their variables have been replaced."""
        self._compiled.forget()

    def gather(
        self,
        shards: Shards,
        parts: Mapping[int, Variable],
        variables: Sequence[Variable],
        late: LateGather | None = None,
    ) -> None:
        """Give all workers the parts of `variables` that each of them has updated.

        Workers of one node may be assigned the same memory. It is reused when none of them holds it any more. The parts
        become views of it, so that no weight is stored twice.

        Args:
            shards: The `Shards` of the variables.
            parts: Dict. This worker's own parts, as flat variables, by number.
            variables: The variables.
            late: `LateGather` of the variables, which delivers them in the next step. Defaults to `None`: they are
                delivered in this one.
        """
        if late is not None:
            late.send(parts)
            return
        numbers, assign, timeline = list(parts), self._shared.backend.assign, self._shared.timeline
        if self.communicator.size == 1:
            for number, part in parts.items():
                assign(variables[number], part)
            return

        def collect(*arrays: np.ndarray) -> list[np.ndarray]:
            timeline.to(Part.GATHER)
            wholes = shards.gather(dict(zip(numbers, arrays, strict=True)))
            whole = [wholes[number] for number in numbers]
            timeline.to(Part.OTHER)
            return whole + [wholes[number].reshape(-1)[shards.parts[number]] for number in numbers]

        assigned = [*(variables[number] for number in numbers), *parts.values()]
        stay = len(parts) if self.exchange.on_gpus else 0
        values = self._shared.call(collect, list(parts.values()), specs_of(assigned), stay)
        for variable, value in zip(assigned, values, strict=True):
            assign(variable, value)

    def late_gather(self, shards: Shards, variables: Sequence[Variable]) -> LateGather | None:
        """Return a `LateGather` of `variables`; `None` where it does not help, or is not possible.

        It helps where gradients are sent in several buckets: between nodes, or where the user asks for buckets.
        """
        communicator = self.communicator
        goes_on = communicator.membership.is_elastic  # without a failed worker, whose new weights are lost
        is_one = self.bucket_bytes is None or len(shards.buckets) <= 1 or self.exchange.on_gpus
        if is_one or goes_on or communicator.servers:
            return None
        return LateGather(self._shared, shards, variables)

    def total_of_squares(self, tensors: Sequence[Gradient], in_groups: Sequence[bool] = ()) -> Tensor:
        """Return, in a step, the sum of squares of each gradient over all workers, as a float64 tensor.

        Args:
            tensors: The gradients, or this rank's parts of them.
            in_groups: For each gradient, whether it belongs to a slice; the sum then includes the slices of the other
                ranks of the group. Defaults to none.
        """
        communicator, timeline, among = self.communicator, self._shared.timeline, np.array(in_groups, bool)
        squares, group = self._shared.backend.sums_of_squares(tensors), group_of(communicator)
        if communicator.size == 1 and not among.any():
            return squares

        def total(row: np.ndarray) -> list[np.ndarray]:
            before = timeline.to(Part.EXCHANGE)
            sums = communicator.all_gather_rows(row).sum(axis=0)
            if group is not None and among.any():
                sums[among] = group.all_gather_rows(sums[among]).sum(axis=0)
            timeline.to(before)
            return [sums]

        return self._shared.call(total, [squares], [Spec((len(tensors),), np.dtype("float64"))])[0]

    def on_state(self, collect: Callable[[], list[np.ndarray]]) -> Callable[[], list[np.ndarray]]:
        """Return a function that calls `collect` on all workers, whatever the others are doing in this `fit()`.

        Args:
            collect: A bound method. Its object is not kept alive.
        """
        return self._shared.on_state(collect)

    def join(self, agreed: Agreed, apply: ApplyInStep) -> bool:
        """Take part, with weight zero, in a call that other workers make inside a step.

        Args:
            agreed: The result of `meet`.
            apply: The function that averages gradients with this object, then updates variables.

        Returns:
            Whether the call was one of this optimizer's.
        """
        if agreed.purpose == Purpose.ROWS:
            self.communicator.all_gather_rows(np.zeros(agreed.detail))
            return True
        reducer = next((one for plan, one in self._reducers.items() if plan.hash == agreed.detail), None)
        if reducer is None:
            return False
        slices = reducer.variables[len(reducer.variables) - len(reducer.plan.of(Kind.SLICE)) :]
        if reducer.idle_step is None:
            reducer.idle_step = self._shared.backend.graph(functools.partial(self._step_without_data, reducer, apply))
        of_slices = [self.slices.take(variable) for variable in slices]
        reducer.join(agreed, lambda: reducer.idle_step(of_slices))
        return True

    def _step_without_data(self, reducer: Reducer, apply: ApplyInStep, of_slices: list[Gradient]) -> None:
        """Apply zero gradients, sparse gradients without rows, and the gradients of slices."""
        zeros = {Kind.DENSE: self._tensors.zeros, Kind.ROWS: self._tensors.no_rows}
        entries, left = reducer.plan.gradients, iter(of_slices)
        gradients = [zeros[one.kind](one.spec) if one.kind in zeros else next(left) for one in entries]
        # In the order of the other workers' step, because clipping sums in that order.
        step = sorted(zip(entries, gradients, reducer.variables, strict=True), key=lambda one: one[0].position)
        context = StepContext(moving=reducer.moving)
        apply(context, [gradient for _, gradient, _ in step], [variable for _, _, variable in step])
