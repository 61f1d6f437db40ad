"""The exchanges of one optimizer: one for each list of gradients that its steps have."""

from collections.abc import Sequence

from easyscale.layout.shards import Shards
from easyscale.layout.sliced import Sliced
from easyscale.layout.specs import Spec, Variable
from easyscale.step.gradient_exchange import GradientExchange
from easyscale.step.interfaces import Gradient, StepContext
from easyscale.step.owned_slices import OwnedSlices
from easyscale.step.route import Owned, Signature
from easyscale.step.shared import Shared
from easyscale.step.way import Way

__all__ = ["ExchangesOfGradients"]


class ExchangesOfGradients:
    """Makes the exchange of a list of gradients when a step first has it, and finds it again.

    Args:
        way: The `Way` on which they travel.
        shared: The `Shared` of its communicator.
        densify: Bool. Whether sparse gradients may travel as dense ones where that is less.
        slices: The `OwnedSlices`, of which each worker has the gradient already.

    Attributes:
        by_signature: Dict. Each exchange, by the number that is its gradients' on all workers.
    """

    def __init__(self, way: Way, shared: Shared, densify: bool, slices: OwnedSlices):
        self._way, self._shared, self._densify, self._slices = way, shared, densify, slices
        self._tensors, self._number = shared.backend.tensors, shared.new_number()
        self._by_specs: dict[Signature, GradientExchange] = {}
        self.by_signature: dict[int, GradientExchange] = {}
        self._numbers: dict[int, tuple[int, Variable]] = {}  # by identity, each with its variable

    def divide(self, shards: Shards) -> None:
        """Take in what each worker owns now: exchanges of an earlier division were over other workers."""
        for exchange in self._by_specs.values():
            exchange.divide(shards)

    def of(
        self,
        context: StepContext,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        positions: tuple[list[int], list[int], list[int]],
        accumulates: bool,
        shards: Shards | None,
    ) -> GradientExchange:
        """Return the exchange of a step's gradients; make it the first time.

        Args:
            context: `StepContext`.
            gradients: Of the step.
            variables: The variables that they belong to.
            positions: Of dense gradients, of those that travel as rows, and of those of slices.
            accumulates: Bool. Whether gradients are summed up over several steps before they are exchanged.
            shards: The `Shards`, if each worker gets only what it owns; else `None`.
        """

        def specs_at(indices: list[int]) -> tuple[Spec, ...]:
            return tuple(self.spec(variables[index], gradients[index]) for index in indices)

        dense, in_rows, slices = positions
        order = [*dense, *in_rows, *slices]
        moving = tuple(self.spec(variable, self._tensors.whole(variable)) for variable in context.moving)
        numbers = tuple(self._number_of(variables[index]) for index in order)
        # A slice may have another shape on each rank, so that of the whole counts.
        wholes = tuple(self.spec(self._slices.sliced(variables[index]), gradients[index]) for index in slices)
        parts = specs_at(dense), moving, specs_at(in_rows)
        specs = Signature(*parts, accumulates, shards is not None, self._number, numbers, wholes)
        if specs not in self._by_specs:
            owned = None if shards is None else Owned(shards, dense)
            of_step = [variables[index] for index in order], order, context.moving
            way = self._way
            if way.sums is not None and way.exchange.travels_by != "memory":
                way.sums.warn_of_none(specs.dense)
            exchange = GradientExchange(
                way.exchange, self._shared, specs, *of_step, way.bucket_bytes, self._densify, owned, way.sums
            )
            self._by_specs[specs] = self.by_signature[exchange.signature] = exchange
        return self._by_specs[specs]

    def spec(self, variable: Variable | Sliced, tensor: Gradient) -> Spec:
        """Return the shape of a variable, with the dtype of a tensor."""
        return Spec(tuple(variable.shape), self._tensors.dtype_of(tensor))

    def _number_of(self, variable: Variable) -> int:
        """Return 0 for the first variable that had a gradient, then 1, ...: the same on all ranks."""
        return self._numbers.setdefault(id(variable), (len(self._numbers), variable))[0]
