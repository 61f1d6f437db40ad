"""The rounds of a `fit()` in which workers step alone: their schedule, and who sees which weights in between."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np

from easyscale.backend import value_of
from easyscale.errors import EasyScaleError
from easyscale.optimizer import DistributedOptimizer
from easyscale.step.agreement import Purpose
from easyscale.training.fit_progress import FitProgress
from easyscale.training.meetings import Meetings
from easyscale.training.parts import finite_losses
from easyscale.training.parts.assigned import assigned_in_steps
from easyscale.training.train_function import TrainFunction
from easyscale.update.local import LocalUpdate
from easyscale.update.pairs import Pairs

__all__ = ["Rounds"]


class UnderWay(NamedTuple):
    """A round that overlaps with steps.

    Attributes:
        until: Int. The step after which it ends.
        moves: Bool. Whether it includes moving statistics.
    """

    until: int
    moves: bool


class Rounds:
    """Makes all workers meet after a number of steps without an exchange, and at the end of each epoch.

    If fragments of the weights take turns, workers meet for the next fragment, and for all at the end of an epoch. A
    round may overlap with steps; it ends after the same number of steps on all workers, or earlier if they meet.

    A worker without data takes part with the changes from before its data ended. If each step exchanges gradients there
    are no rounds, and nothing is done.

    Args:
        model: The model.
        optimizers: List of its `DistributedOptimizer`s.
        progress: The `FitProgress`.
        meetings: The `Meetings`.
        compare: Function. Takes the number of steps; raises `DesyncError` if workers' weights differ.
        trace_anew: Function. Forces a retrace of the next step. Defaults to `None`, if no steps are made.

    Attributes:
        are_apart: Bool. Whether this worker has stepped alone since the last round of any weights.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizers: Sequence[DistributedOptimizer],
        progress: FitProgress,
        meetings: Meetings,
        compare: Callable[[int], None],
        trace_anew: Callable[[], None] | None = None,
    ):
        self._model, self._optimizers, self._progress, self._meetings = model, optimizers, progress, meetings
        self._trace_anew, self._compare = trace_anew, compare
        self._since, self._fragment = 0, 0  # the step after which workers met last; their next fragment
        self._under_way: UnderWay | None = None
        self._pairs: list[Pairs] = []  # of each optimizer, since the first step
        self.are_apart = False
        self._moving: list[tuple[keras.Variable, np.ndarray]] = []
        meetings.register(Purpose.ROUND, self._make_next)
        meetings.register(Purpose.CHECK, self._compare_last)
        meetings.register_finish(self._finish)

    @property
    def _local(self) -> list[LocalUpdate]:
        return [optimizer.updates.local for optimizer in self._optimizers if optimizer.updates.local is not None]

    @property
    def exchanges(self) -> bool:
        """True if the next step exchanges gradients."""
        return all(local.exchanges for local in self._local)

    @property
    def is_open(self) -> bool:
        """True if this worker has stepped alone since the last round of all weights: then some are its own."""
        return any(local.is_open for local in self._local)

    @property
    def has_stepped(self) -> bool:
        """True if each optimizer has stepped since the last round, on some samples."""
        return all(local.has_stepped for local in self._local)

    def before_step(self, train_function: TrainFunction) -> TrainFunction:
        """Return the function that makes the next step: a retraced one when workers start to step alone."""
        if not self._local:
            return train_function
        if len(self._local) < len(self._optimizers):
            raise EasyScaleError(
                "all optimizers of a model must step alone, or none. Received: "
                f"{len(self._local)} of {len(self._optimizers)}. Give each the same `update`"
            )
        if not self.is_open:
            self._since = self._progress.steps
            self._note_moving()
            for local in self._local:
                local.look()
        if any(local.traced not in (None, local.exchanges) for local in self._local) and self._trace_anew is not None:
            for local in self._local:
                local.traced = None
            self._trace_anew()
            return self._model.train_function
        return train_function

    def after_step(self) -> None:
        """Make a round if one is due, with all workers, including those without data."""
        if self.exchanges:
            return
        for local in self._local:
            local.is_open = self.are_apart = True
        steps = self._progress.steps
        if self._under_way is not None and steps >= self._under_way.until:
            self._finish()
            self.are_apart = False
        if steps - self._since >= self._local[0].every:
            if self._local[0].in_pairs:
                self._since = steps
                self._mix(has_data=True)
            else:
                self._meetings.reach(Purpose.ROUND, steps)
                self._make_next(steps)

    def end_data(self) -> None:
        """Continue mixing, if weights mix in pairs, until no worker has data. Workers call this as their data ends."""
        while self._local and self._local[0].in_pairs and not self._mix(has_data=False):
            pass

    def _mix(self, has_data: bool) -> bool:
        if not self._pairs:
            communicator = self._optimizers[0].workers.communicator
            self._pairs = [Pairs(communicator, [weight for weight, _ in local.weights]) for local in self._local]
        for local in self._local:
            local.leave()
            local.is_open = True
        have_ended = [pairs.mix(has_data) for pairs in self._pairs]  # each in turn, on all workers
        return all(have_ended)

    def compare(self) -> None:
        """Raise `DesyncError` if the weights that workers share differ. All workers have just met."""
        self._meetings.reach(Purpose.CHECK, self._progress.steps)
        self._compare_last(self._progress.steps)

    def _compare_last(self, steps: int) -> None:
        with self.of_last():
            self._compare(steps)

    def end_epoch(self, is_open: bool) -> None:
        """Make a round at the end of an epoch. All workers must call this.

        Args:
            is_open: Bool. Whether some worker has stepped alone since the last one.
        """
        if is_open:
            self._make(self._progress.steps)
            for local in self._local:
                local.settle()
        self._fragment = 0

    def _make_next(self, steps: int) -> None:
        if overlap := self._local[0].overlap:
            self._start(steps, overlap)
        else:
            self._make(steps, self._fragment)
        self._fragment = (self._fragment + 1) % max(local.fragments for local in self._local)

    def _make(self, steps: int, fragment: int | None = None) -> None:
        moving = [] if fragment else assigned_in_steps(self._model)
        for local, of_first, losses in self._shares(moving):
            local.make_round(of_first, losses, fragment)
        if moving and self.is_open:
            self._note_moving()
        self._since, self.are_apart = steps, False

    def _start(self, steps: int, overlap: int) -> None:
        """Begin a round that ends after `overlap` more steps, or earlier if workers meet."""
        moving = [] if self._fragment else assigned_in_steps(self._model)
        for local, of_first, losses in self._shares(moving):
            local.start_round(of_first, losses, self._fragment)
        self._since, self._under_way, self.are_apart = steps, UnderWay(steps + overlap, bool(moving)), True

    def _finish(self) -> None:
        """End the round in progress, if there is one."""
        if self._under_way is None:
            return
        (_, moves), self._under_way = self._under_way, None
        for local in self._local:
            local.finish_round()
        if moves and self.is_open:
            self._note_moving()

    def _shares(self, moving: list[keras.Variable]) -> Iterator[tuple[LocalUpdate, list, Sequence[keras.Variable]]]:
        """Yield each optimizer's update, the moving statistics sent with it, and variables that show finite losses."""
        for number, optimizer in enumerate(self._optimizers):
            is_scaled = isinstance(optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)
            if (local := optimizer.updates.local) is not None:
                yield local, [] if number else moving, () if is_scaled else finite_losses.totals(self._model)

    def _note_moving(self) -> None:
        self._moving = [(variable, value_of(variable)) for variable in assigned_in_steps(self._model)]

    @contextlib.contextmanager
    def of_last(self) -> Iterator[None]:
        """Return a context in which the model has the weights of the last round, which all workers share."""
        last = [pair for local in self._local if local.is_open for pair in local.weights]
        last += self._moving if last else []
        own = [(variable, value_of(variable)) for variable, _ in last]
        try:
            for variable, value in last:
                variable.assign(value)
            yield
        finally:
            for variable, value in own:
                variable.assign(value)
