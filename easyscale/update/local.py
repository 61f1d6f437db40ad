"""Each worker updates all weights by its own gradients; every so many steps all meet in a round."""

from collections.abc import Callable, Sequence

import keras
import numpy as np

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.layout.specs import Spec
from easyscale.optimizers.nested import all_variables
from easyscale.step.interfaces import GradientSync, StepContext
from easyscale.update.accumulated import unscaled
from easyscale.update.base import Update
from easyscale.update.element_wise import is_of_keras
from easyscale.update.local_steps import LocalSteps
from easyscale.update.outer import OuterStep
from easyscale.update.replicated import ReplicatedUpdate
from easyscale.update.states_of_workers import StatesOfWorkers

__all__ = ["LocalUpdate"]


class LocalUpdate(Update):
    """Has each worker step alone between rounds, during a `fit()`; the first steps may be made together.

    Whoever makes the steps asks whether the next one exchanges gradients, says when there was one without, and calls
    for the rounds. Behind `fit()` the optimizer's state is the mean of all workers'.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        connect: Function that returns all workers, as one of them sees them.
        asked: `LocalSteps`. What the user has asked for.

    Attributes:
        every: Int. A round is made after so many steps without one.
        exchanges: Bool. Whether the next step exchanges gradients: the same on all workers.
        traced: Bool. Whether the step that was traced last does; `None` if none was traced.
        is_open: Bool. Whether this worker has stepped alone since the last round, so that its weights are its own.

    Raises:
        ValueError: If workers cannot step alone in this job.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        connect: Callable[[], GradientSync],
        asked: LocalSteps,
    ):
        super().__init__(optimizer, variables, connect)
        communicator = connect().communicator
        for is_so, rule, received in (
            (communicator.membership.is_elastic, "an update in rounds needs all of its workers", "an elastic job"),
            (bool(communicator.servers), "workers that step alone need ranks that all train", "a job with servers"),
        ):
            if is_so:
                raise ValueError(f"{rule}. Received: update='{asked.name}' and {received}. Use `update='replicated'`")
        self.every, self._start_step = asked.every, asked.start_step
        self.exchanges, self.is_open = True, False
        self.traced: bool | None = None
        self._together = ReplicatedUpdate(optimizer, variables, connect)
        self._states = StatesOfWorkers(optimizer, connect())
        self._outer = OuterStep(asked.make_outer_optimizer(), variables, connect)
        self._means_on_all = connect().on_state(self._states.means)

    def begin(self) -> None:
        if not self._optimizer.built:
            self._optimizer.build(self._variables)
        self._outer.begin()
        self._together.begin()
        self.active, self.exchanges, self.is_open = True, True, False
        self.look()

    def look(self) -> None:
        """See whether the first steps, made together, are over, and which weights all workers have in common now.

        All have made as many steps, and have the same weights.
        """
        if self.exchanges:
            self.exchanges = int(unscaled(self._optimizer).iterations) < self._start_step
        if not self.exchanges:
            self._outer.restart()

    def apply(self, context: StepContext, gradients: list, variables: list[keras.Variable]) -> None:
        self.traced = self.exchanges
        if self.exchanges:
            self._together.apply(context, gradients, variables)
        else:
            self._outer.count(context.weight)
            apply, compiles = self._optimizer.apply, is_of_keras(self._optimizer)
            self._connect().update(apply, gradients, variables, compiles)

    # Rounds

    def make_round(self, moving: Sequence[keras.Variable], losses: Sequence[keras.Variable]) -> None:
        """Make a round; see `OuterStep.make`."""
        if not self.is_open:  # its own data have ended, perhaps before the first steps were over
            self.look()
        self._outer.make(moving, losses)
        self.is_open = False

    def settle(self) -> None:
        """Have all workers count as many steps as the one that has made most. All must call this."""
        steps = unscaled(self._optimizer).iterations
        steps.assign(max(self._connect().communicator.all_gather_object(int(steps))))

    @property
    def has_stepped(self) -> bool:
        """Whether this worker has stepped, by some samples, since the last round."""
        return self._outer.samples > 0

    @property
    def weights(self) -> list[tuple[keras.Variable, np.ndarray]]:
        """Each variable, with its value in the last round."""
        return list(zip(self._variables, self._outer.last, strict=True))

    # The end

    def end(self) -> None:
        if not self.exchanges:
            for variable, mean in zip(self._states.variables, self._states.means(), strict=True):
                variable.assign(mean)
        self._outer.end()
        self._together.end()
        self.active = self.is_open = False

    def abandon(self, lost: bool = True) -> None:
        self._outer.abandon(lost)
        self._together.abandon(lost)
        self.active = self.is_open = False

    # The state: that of the inner optimizer, of each worker, and that of the outer one

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
        return 1 if self.exchanges else self._connect().communicator.size

    def state_specs(self) -> list[Spec]:
        return self._states.specs(self._count) + self._outer.state_specs()

    def collect(self, memory: SnapshotMemory) -> list[np.ndarray]:
        return self._states.collect(self._count, memory) + self._outer.collect(memory)

    def load(self, values: list[np.ndarray]) -> None:
        count = len(self._states.variables)
        self._states.load(values[:count])
        self._outer.load(values[count:])
        self.exchanges = True
        self.look()

    @property
    def variables(self) -> list[keras.Variable]:
        return [*all_variables(self._optimizer), *self._outer.variables]
