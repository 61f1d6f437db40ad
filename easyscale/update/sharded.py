"""An update in which each worker updates the part of the weights that it owns."""

import functools

import keras
import numpy as np

from easyscale.step.context import StepContext
from easyscale.update.backup import Backup, collect
from easyscale.update.divided import DividedUpdate
from easyscale.update.element_wise import is_element_wise, why_not_elsewhere

__all__ = ["ShardedUpdate"]


class ShardedUpdate(DividedUpdate):
    """Lets each worker update the part of the weights that it owns, during a `fit()`.

        g_part = owned part of sum_r(n_r g_r) / sum_r(n_r)              reduce
        w_part, state_part = optimizer(w_part, state_part, g_part)      update
        w = all workers' parts                                          gather, also during the next step

    The state of a part exists on its owner only, and in an elastic job as a copy on the next worker. Before and after
    `fit()` it is whole, in the optimizer itself. In a split layer the part is the worker's slice: its gradient arrives
    in the backward pass, and it is neither reduced nor gathered. If a worker is a group of ranks, slices are reduced
    and gathered between the ranks that have the same.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        connect: Function that returns the `Gradients`.

    Reference: Xu et al., "Automatic cross-replica sharding of weight update in data-parallel training", 2020.
    """

    name = "sharded"
    needs = "an optimizer that treats each element of a weight by itself"
    _backup: Backup | None = None

    @classmethod
    def why_not(cls, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> str | None:
        reason = why_not_elsewhere(optimizer, variables)
        if reason is None and not is_element_wise(optimizer):
            reason = "its step for a part of a matrix is not that part of its step for the matrix"
        return reason

    def apply(self, context: StepContext, gradients: list, variables: list[keras.Variable]) -> None:
        by_number = dict(zip((self._numbers[id(variable)] for variable in variables), gradients, strict=True))
        gradients = [by_number.get(number) for number in range(len(self._variables))]
        parts = self._replication.reduce(context, gradients, self._variables, shards=self._shards)
        numbers = [number for number, part in enumerate(parts) if part is not None]
        in_groups = [number in self._shards.groups for number in numbers]
        total_of_squares = functools.partial(self._replication.total_of_squares, in_groups=in_groups)
        parts = self._twin.clip([parts[number] for number in numbers], total_of_squares)
        if context.adjust is not None:
            parts = context.adjust(parts, total_of_squares)
        pieces = [self._twin.pieces[number] for number in numbers]
        self._replication.update(self._update, parts, pieces, self._compiles)
        own = {n: piece for n, piece in zip(numbers, pieces, strict=True) if n not in self._shards.slices}
        self._replication.gather(self._shards, own, self._variables, context.late)

    def _update(self, parts: list, pieces: list[keras.Variable]) -> None:
        for piece in pieces:
            number = self._twin.number_of(piece)
            if number not in self._shards.slices:
                piece.assign(keras.ops.reshape(self._variables[number], (-1,))[self._shards.parts[number]])
        self._twin.optimizer.apply(parts, pieces)

    def _on_begin(self, wholes: list[np.ndarray]) -> None:
        communicator = self._replication.communicator
        self.late = self.late or self._replication.late_gather(self._shards, self._variables)
        if communicator.membership.is_elastic:
            self._backup = Backup(communicator, self._state.parts_of(Backup.source(communicator), wholes))

    def back_up(self) -> None:
        """Send a copy of this worker's part of the state to the next. All workers must call this."""
        assert self._backup is not None  # the job is elastic
        self._backup.renew(self._state.own())

    def recover(self) -> None:
        """Do the same as `end`, without the failed workers. All others must call this, or `collect`."""
        found = collect(self._replication.communicator, self._backup, self._state.own())
        self._give_back(self._state.unite(found))
