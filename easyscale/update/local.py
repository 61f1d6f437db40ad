"""Updates in which each worker applies its own gradients to all weights, with regular rounds of all workers."""

import heapq
import math
from collections.abc import Callable, Sequence

import keras
import numpy as np

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.layout.specs import Spec
from easyscale.optimizers.nested import all_variables
from easyscale.step.context import StepContext
from easyscale.step.gradients import Gradients
from easyscale.update.accumulated import unscaled
from easyscale.update.base import Update
from easyscale.update.element_wise import is_of_keras
from easyscale.update.local_steps import LocalSteps
from easyscale.update.outer import OuterStep
from easyscale.update.replicated import ReplicatedUpdate
from easyscale.update.states_of_workers import StatesOfWorkers

__all__ = ["LocalUpdate"]


class LocalUpdate(Update):
    """Lets each worker step alone between rounds, and during some, in a `fit()`; the first steps may be joint.

    The caller of steps asks whether the next one exchanges gradients, reports steps without exchange, and calls for the
    rounds. After `fit()` the optimizer's state is the mean of all workers'.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        connect: Function that returns the `Gradients`.
        asked: `LocalSteps`. The user's request.

    Attributes:
        every: Int. Number of steps before each round: of all weights, or of the next fragment.
        fragments: Int. Number of parts in which weights take turns.
        in_pairs: Bool. Whether a worker mixes its weights with another's instead. Each epoch still ends with a round.
        overlap: Int. Number of steps during a round.
        exchanges: Bool. Whether the next step exchanges gradients: the same on all workers.
        traced: Bool. Whether the last traced step does; `None` if none was traced.
        is_open: Bool. Whether this worker has stepped alone since the last round of all weights, so that some of its
            weights are its own.

    Raises:
        ValueError: If workers cannot step alone in this job.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        connect: Callable[[], Gradients],
        asked: LocalSteps,
    ):
        super().__init__(optimizer, variables, connect)
        asked.check_job(connect())
        parts = fragments_of(variables, asked.fragments)
        self.every, self.fragments, self._start_step = asked.every // len(parts), len(parts), asked.start_step
        self.exchanges, self.is_open = True, False
        self._are_apart = False  # whether the workers' states may differ
        self.traced: bool | None = None
        self._together = ReplicatedUpdate(optimizer, variables, connect)
        self._states = StatesOfWorkers(optimizer, connect())
        self.overlap, self.in_pairs, mixing = asked.overlap, asked.in_pairs, asked.mixing if asked.overlap else None
        self._outers = [
            OuterStep(asked.make_outer_optimizer(), part, connect, mixing, counts_alike=asked.in_pairs)
            for part in parts
        ]
        self._means_on_all = connect().on_state(self._states.means)

    def begin(self) -> None:
        if not self._optimizer.built:
            self._optimizer.build(self._variables)
        for outer in self._outers:
            outer.begin()
        self._together.begin()
        self.active, self.exchanges, self.is_open, self._are_apart = True, True, False, False
        self.look()

    def look(self) -> None:
        """Check whether the joint first steps are over; if so, record the weights, which all workers have in common.

        All workers have taken equally many steps.
        """
        if self.exchanges:
            self.exchanges = int(unscaled(self._optimizer).iterations) < self._start_step
        if not self.exchanges:
            for outer in self._outers:
                outer.restart()

    def apply(self, context: StepContext, gradients: list, variables: list[keras.Variable]) -> None:
        self.traced = self.exchanges
        if self.exchanges:
            self._together.apply(context, gradients, variables)
        else:
            for outer in self._outers:
                outer.count(context.weight)
            apply, compiles = self._optimizer.apply, is_of_keras(self._optimizer)
            self._connect().update(apply, gradients, variables, compiles)

    # Rounds

    def leave(self) -> None:
        """Called before a round changes weights, even if this worker has not stepped alone."""
        self._are_apart = True
        if not self.is_open:  # its data have ended, perhaps during the first steps
            self.look()

    def make_round(
        self, moving: Sequence[keras.Variable], losses: Sequence[keras.Variable], fragment: int | None = None
    ) -> None:
        """Run a round; see `OuterStep.make`.

        Args:
            moving: See `OuterStep.make`.
            losses: The same.
            fragment: Int. The part of the weights. Defaults to `None`: all.
        """
        self.leave()
        if fragment is not None and self.fragments > 1:
            for outer in self._outers[fragment : fragment + 1]:  # empty if only another optimizer has as many fragments
                outer.make(moving, losses)
            return
        for number, outer in enumerate(self._stepped()):
            outer.make(() if number else moving, losses)
        self.is_open = False

    def start_round(self, moving: Sequence[keras.Variable], losses: Sequence[keras.Variable], fragment: int) -> None:
        """Start a round of a fragment during which workers step on; see `make_round`, and `OuterStep.start`."""
        self.leave()
        for outer in self._outers[fragment : fragment + 1]:
            outer.start(moving, losses)

    def finish_round(self) -> None:
        """Finish the current round, if there is one; see `OuterStep.finish`."""
        for outer in self._outers:
            outer.finish()

    def _stepped(self) -> list[OuterStep]:
        """Return the fragments that some worker has changed since their last rounds: all, if weights take no turns."""
        if self.fragments == 1 and not self.overlap:
            return self._outers
        all_ranks = self._connect().communicator.all_gather_object([outer.samples for outer in self._outers])
        return [outer for outer, *of_ranks in zip(self._outers, *all_ranks, strict=True) if any(of_ranks)]

    def settle(self) -> None:
        """Set the step count of all workers to the largest. All must call this."""
        steps = unscaled(self._optimizer).iterations
        steps.assign(max(self._connect().communicator.all_gather_object(int(steps))))

    @property
    def has_stepped(self) -> bool:
        """True if this worker has stepped, with at least one sample, since the last round of any weights."""
        return any(outer.samples > 0 for outer in self._outers)

    @property
    def weights(self) -> list[tuple[keras.Variable, np.ndarray]]:
        """Each variable, with its value as of its last round."""
        return [pair for outer in self._outers for pair in outer.last]

    # The end

    def end(self) -> None:
        if self._are_apart:  # otherwise a mean would only round
            for variable, mean in zip(self._states.variables, self._states.means(), strict=True):
                variable.assign(mean)
        for outer in self._outers:
            outer.end()
        self._together.end()
        self.active = self.is_open = False

    def abandon(self, lost: bool = True) -> None:
        for outer in self._outers:
            outer.abandon(lost)
        self._together.abandon(lost)
        self.active = self.is_open = False

    # The state: each worker's of the inner optimizer, and that of the outer optimizer

    def save_own_variables(self, store: dict) -> None:
        """Write the mean of all workers' states or, between rounds, this worker's own: the others do not wait then."""
        if self.is_open or self.exchanges:
            self._optimizer.save_own_variables(store)
        else:
            for index, (_, value) in enumerate(zip(self._optimizer.variables, self._means_on_all(), strict=False)):
                store[str(index)] = value

    def load_own_variables(self, store: dict) -> None:
        self._optimizer.load_own_variables(store)
        self.exchanges = True
        self.look()

    @property
    def _count(self) -> int:
        return self._connect().communicator.size if self.active and not self.exchanges else 1

    def state_specs(self) -> list[Spec]:
        of_outers = [spec for outer in self._outers for spec in outer.state_specs()]
        return self._states.specs(self._count) + of_outers

    def collect(self, memory: SnapshotMemory) -> list[np.ndarray]:
        own = self._states.collect(self._count, memory)
        return own + [value for outer in self._outers for value in outer.collect(memory)]

    def load(self, values: list[np.ndarray]) -> None:
        count = len(self._states.variables)
        self._states.load(values[:count])
        self._are_apart = len(values[0]) > 1
        for outer in self._outers:
            start, count = count, count + len(outer.variables)
            outer.load(values[start:count])
        self.exchanges = True
        self.look()

    @property
    def variables(self) -> list[keras.Variable]:
        of_outers = [variable for outer in self._outers for variable in outer.variables]
        return [*all_variables(self._optimizer), *of_outers]


def fragments_of(variables: Sequence[keras.Variable], count: int) -> list[list[keras.Variable]]:
    """Return the parts in which weights take turns, of similar size, each in the order of the weights.

    Args:
        variables: The weights.
        count: Int. The number of parts, limited to the number of weights.
    """
    count = max(1, min(count, len(variables)))
    sizes = [(0, part) for part in range(count)]
    part_of = {}
    for index in sorted(range(len(variables)), key=lambda index: -math.prod(variables[index].shape)):
        size, part_of[index] = heapq.heappop(sizes)  # the smallest so far
        heapq.heappush(sizes, (size + math.prod(variables[index].shape), part_of[index]))
    return [[variable for index, variable in enumerate(variables) if part_of[index] == part] for part in range(count)]
