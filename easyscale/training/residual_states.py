"""Residuals of compressed gradients, as a part of the training state."""

from collections.abc import Sequence

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.layout.specs import Spec
from easyscale.optimizer import DistributedOptimizer
from easyscale.training.stateful import State

__all__ = ["ResidualStates"]


class ResidualStates:
    """The residuals of the gradients of all optimizers, on each worker, and other state of their compressions.

    Args:
        optimizers: The `DistributedOptimizer`s.
        memory: `SnapshotMemory` for copies of it.
    """

    def __init__(self, optimizers: Sequence[DistributedOptimizer], memory: SnapshotMemory):
        sums = enumerate(optimizer.workers.gradients.sums for optimizer in optimizers)
        self._sums = {number: own for number, own in sums if own is not None and own.keeps_error}
        self._memory = memory

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `state` uses the memory."""
        return [spec for own in self._sums.values() for spec in own.specs()]

    def state(self) -> State:
        """Return the residuals, on the chief: a row of each worker. All workers must call this."""
        arrays = {
            f"residual/{number}/{name}": array
            for number, own in self._sums.items()
            for name, array in own.collect(self._memory).items()
        }
        return State({str(number): own.steps for number, own in self._sums.items()}, arrays)

    def load(self, state: State) -> None:
        """Set the residuals that `state` returned, on this or another number of workers."""
        for number, own in self._sums.items():
            prefix = f"residual/{number}/"
            found = {name: array for name, array in state.arrays.items() if name.startswith(prefix)}
            steps = max(0, int(state.about.get(str(number), own.steps)))
            own.load(steps, {name.removeprefix(prefix): array for name, array in found.items()})
