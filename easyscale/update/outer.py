"""A round: the changes of all workers since the last one become a step of an outer optimizer."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.backend import value_of
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.layout.specs import Spec
from easyscale.step.context import StepContext, Tensor
from easyscale.step.gradients import Gradients
from easyscale.step.whole_batch import COMPARED
from easyscale.update import choosing
from easyscale.update.base import Update
from easyscale.update.element_wise import is_of_keras
from easyscale.update.replicated import ReplicatedUpdate

__all__ = ["OuterStep"]


class OuterStep:
    """The weights of the last round, and the outer optimizer that computes those of the next.

    A round is a step of all workers whose gradient is a difference of weights: it is exchanged, weighted, compressed
    and applied in the same way as gradients, by an update of its own. If that is the sharded one, the outer optimizer's
    state is at the owners.

    Args:
        outer: The outer optimizer.
        variables: The weights.
        connect: Function that returns the `Gradients`.
        mixing: Float. The fraction kept of a worker's own weights at the end of a round during which it has stepped on.
            Defaults to `None`: it steps between rounds only.
        counts_alike: Bool. Whether all workers have the same weight in the mean, rather than by samples. Defaults to
            `False`.
    """

    def __init__(
        self,
        outer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        connect: Callable[[], Gradients],
        mixing: float | None = None,
        counts_alike: bool = False,
    ):
        self._weights, self._outer, self._connect, self._mixing = list(variables), outer, connect, mixing
        self._counts_alike = counts_alike
        self._last = [
            keras.Variable(value_of(weight), dtype=weight.dtype, name=weight.name) for weight in self._weights
        ]
        # A gather after the outer step would not overlap with the workers' steps.
        update = choosing.choose(None, outer, self._last, connect()) if mixing is None else ReplicatedUpdate
        self._update: Update = update(outer, self._last, connect)
        outer.build(self._last)
        widest = keras.backend.result_type("float64")  # JAX warns of what it does not have
        self._samples = keras.Variable(np.zeros(()), dtype=widest, trainable=False, name="samples")
        self._rounds: dict[tuple[int, ...], Callable[[], None]] = {}
        self._halves: dict[tuple[int, ...], tuple[Callable[[], None], Callable[[], None]]] = {}
        self._finish: Callable[[], None] | None = None  # of the current round

    def begin(self) -> None:
        """Begin a `fit()`. All workers must call this."""
        if not self._update.active:
            self._update.begin()

    def restart(self) -> None:
        """Take the current weights, which are the same on all workers, as those of the last round."""
        for last, weight in zip(self._last, self._weights, strict=True):
            last.assign(weight)
        self._samples.assign(0.0)

    def count(self, samples: Any) -> None:
        """Count the samples of a step that this worker has taken alone."""
        self._samples.assign_add(keras.ops.cast(samples, self._samples.dtype))

    @property
    def samples(self) -> float:
        """This worker's samples since the last round."""
        return float(self._samples)

    @property
    def last(self) -> list[tuple[keras.Variable, np.ndarray]]:
        """Each weight, with its value as of the last round."""
        return [(weight, value_of(last)) for weight, last in zip(self._weights, self._last, strict=True)]

    def make(self, moving: Sequence[keras.Variable], losses: Sequence[keras.Variable]) -> None:
        """Run a round. All workers must call this; one without samples has weight 0, except with `counts_alike`.

        Args:
            moving: See `StepContext`.
            losses: The same.
        """
        key = tuple(map(id, [*moving, *losses]))
        if key not in self._rounds:
            self._rounds[key] = backends.get().graph(lambda: self._make(moving, losses))
        self._rounds[key]()

    def _make(self, moving: Sequence[keras.Variable], losses: Sequence[keras.Variable]) -> None:
        context, differences = self._moved(moving, losses)
        self._update.apply(context, differences, self._last)
        for last, weight in zip(self._last, self._weights, strict=True):
            weight.assign(last)
        self._samples.assign(0.0)

    def _moved(
        self, moving: Sequence[keras.Variable], losses: Sequence[keras.Variable]
    ) -> tuple[StepContext, list[Tensor]]:
        """Return the context of this worker's steps, and its differences from the weights of the last round."""
        weights = [keras.ops.convert_to_tensor(weight) for weight in self._weights]
        differences = [last - weight for last, weight in zip(self._last, weights, strict=True)]
        beginnings = [keras.ops.reshape(weight, (-1,))[:COMPARED] for weight in weights]
        samples = keras.ops.convert_to_tensor(self._samples)
        samples = keras.ops.ones_like(samples) if self._counts_alike else samples
        return StepContext(samples, beginnings, moving, losses), differences

    # A round that overlaps with steps

    def start(self, moving: Sequence[keras.Variable], losses: Sequence[keras.Variable]) -> None:
        """Start a round, with all workers. `finish` must follow before the next round or any other collective call.

        Args:
            moving: See `StepContext`.
            losses: The same.
        """
        key = tuple(map(id, [*moving, *losses]))
        if key not in self._halves:
            self._halves[key] = self._make_halves(moving, losses)
        start, self._finish = self._halves[key]
        start()

    def finish(self) -> None:
        """Finish the current round, if there is one: wait for the differences, then mix weights with the round's.

        A worker that has not stepped meanwhile has nothing to keep, and takes those of the round.
        """
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()

    def _make_halves(
        self, moving: Sequence[keras.Variable], losses: Sequence[keras.Variable]
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        came: list[Callable[[], list[Tensor]]] = []  # set by the graph that is traced first, for the other one

        def start() -> None:
            context, differences = self._moved(moving, losses)
            came[:] = [self._connect().begin_reduce(context, differences, self._last)]
            self._samples.assign(0.0)

        def finish() -> None:
            means = came[0]()
            for variable in reversed(moving):
                variable.assign(means.pop())
            self._connect().update(self._outer.apply, means, self._last, is_of_keras(self._outer))
            kept = keras.ops.where(self._samples > 0, self._mixing, 0.0)
            for last, weight in zip(self._last, self._weights, strict=True):
                own = keras.ops.cast(kept, weight.dtype)
                weight.assign(own * weight + (1 - own) * last)

        return backends.get().graph(start), backends.get().graph(finish)

    def end(self) -> None:
        """End a `fit()`: make the outer optimizer's state whole on all workers. All must call this."""
        self._update.end()
        self._take_memory()

    def abandon(self, lost: bool) -> None:
        """End without the others; see `Update.abandon`."""
        self._finish = None
        if self._update.active:
            self._update.abandon(lost)
            self._take_memory()

    def _take_memory(self) -> None:
        """Give the weights their own memory: after a round it may be shared by several workers."""
        for weight in self._weights:
            weight.assign(value_of(weight))

    # The outer optimizer's state; see `Update`

    @property
    def variables(self) -> list[keras.Variable]:
        return self._update.variables

    def state_specs(self) -> list[Spec]:
        return self._update.state_specs()

    def collect(self, memory: SnapshotMemory) -> list[np.ndarray]:
        return self._update.collect(memory)

    def load(self, values: list[np.ndarray]) -> None:
        self._update.load(values)
