"""Steps of a `fit()` that all workers make together."""

from collections.abc import Iterator
from typing import Any, NoReturn

from easyscale.progress import Activity
from easyscale.timeline import Part
from easyscale.training.checkpointing import Checkpointing
from easyscale.training.console import Console
from easyscale.training.elastic.regrouping import Regrouping
from easyscale.training.first_step import FirstStep
from easyscale.training.fit_progress import FitProgress
from easyscale.training.meetings import Meetings
from easyscale.training.parts.data_pass import DataPass
from easyscale.training.parts.divided_data import DividedData
from easyscale.training.parts.finite_losses import FiniteLosses
from easyscale.training.replicated_model import ReplicatedModel
from easyscale.training.rounds import Rounds
from easyscale.training.train_function import TrainFunction

__all__ = ["SynchronousSteps"]


class SynchronousSteps:
    """Makes steps with the others: a worker without data takes part in those of the others.

    Args:
        replicated: The `ReplicatedModel`.
        progress: The `FitProgress`.
        meetings: The `Meetings`.
        data: The `DividedData`.
        data_pass: The `DataPass`.
        checkpointing: The `Checkpointing`, or `None`.
        regrouping: The `Regrouping` of an elastic job, or `None`.
        rounds: The `Rounds`.
        check_every: Int. The number of steps between comparisons of weights, which may wait for the next round.
        console: The `Console`.
    """

    def __init__(
        self,
        replicated: ReplicatedModel,
        progress: FitProgress,
        meetings: Meetings,
        data: DividedData,
        data_pass: DataPass,
        checkpointing: Checkpointing | None,
        regrouping: Regrouping | None,
        rounds: Rounds,
        check_every: int,
        console: Console,
    ):
        self._model, self._replication = replicated.model, replicated.workers
        self._replicated, self._progress, self._meetings = replicated, progress, meetings
        self._data, self._pass = data, data_pass
        self._checkpointing, self._regrouping = checkpointing, regrouping
        self._rounds, self._check_every, self._console = rounds, check_every, console
        self._logs: Any = {}
        self._has_batch = False  # a batch that it has taken, and not counted
        self._first: FirstStep | None = None  # until weights are equal after it
        self._compares = False  # as soon as weights are equal

    def begin(self) -> None:
        """Prepare for the first step."""
        self._replication.steps.same_batch()  # forgets that of the last fit()
        self._losses = FiniteLosses(self._replication)

    def step(self, train_function: TrainFunction, iterator: Iterator) -> Any:
        """Make one step, or `steps_per_execution`, by `train_function.function(iterator)`; compare if that is due.

        A step in which a worker of an elastic job fails counts as done.
        """
        if self._regrouping is None or not self._replicated.is_elastic:
            return self._step(train_function, iterator)
        after, self._has_batch = self._progress.steps + self._model.steps_per_execution, False
        try:
            return self._step(train_function, iterator)
        except Exception as error:
            if not self._regrouping.survives(error, steps=after):
                raise
            self._count_batch()
            return self._logs

    def _step(self, train_function: TrainFunction, iterator: Iterator) -> Any:
        told, progress, count = self._replication.communicator.progress, self._progress, self._model.steps_per_execution
        told.step, told.activity = progress.steps, Activity.FIRST_STEP if progress.traces else Activity.STEPS
        checkpointing, before = self._checkpointing, progress.steps
        timeline = self._replication.communicator.timeline
        if progress.traces:
            timeline.leave_out()
        if before == 0:
            self._replicated.build(iterator, traces=checkpointing is not None and checkpointing.needs_metrics)
        if self._replication.communicator.is_server:
            self._end_on_server(train_function, iterator)
        if checkpointing is not None:
            iterator, skipped = checkpointing.skip(iterator)
            if skipped:
                self._data.count(count)
                return {}
            if not self._rounds.is_open:
                timeline.to(Part.CHECKPOINT)
                checkpointing.before_step(progress.steps)
                timeline.to(Part.OTHER)
            before = progress.steps  # the checkpoint may have changed it
        self._pass.check(count)
        iterator = self._data.follow(iterator)
        train_function = self._rounds.before_step(train_function)
        if before == 0:
            self._first = FirstStep(self._model, self._replication, self._rounds, self._console.is_verbose)
        self._has_batch = True
        timeline.to(Part.DATA)
        self._logs = train_function.function(iterator)
        timeline.to(Part.OTHER)
        progress.count(count)
        told.activity = Activity.STEPS
        self._count_batch()
        if before == 0 and self._first is not None:
            self._first.check()
        timeline.to(Part.EXCHANGE)
        self._rounds.after_step()
        timeline.to(Part.OTHER)
        progress.note_exchanges()
        self._losses.check(progress.steps)
        self._compares |= before == 0 or before // self._check_every < progress.steps // self._check_every
        if not self._rounds.are_apart:
            self._compare()
        if self._regrouping is not None:
            self._regrouping.back_up(before, progress.steps)
        return self._logs

    def _compare(self) -> None:
        """Check what workers have in common now."""
        self.end_first()
        if self._compares:
            self._compares = False
            self._rounds.compare()

    def end_first(self) -> None:
        """Compare the first batches, if weights are equal on all workers for the first time since."""
        if self._first is not None:
            self._first.compare_batches()
            self._first = None

    def _end_on_server(self, train_function: TrainFunction, iterator: Iterator) -> NoReturn:
        """End a server's data before its first step: it takes part in the workers' steps until their data ends."""
        train_function.rehearse(self._replicated.rehearse, iterator)
        if self._checkpointing is not None:
            self._checkpointing.put_back()
        raise StopIteration

    def _count_batch(self) -> None:
        if self._has_batch:
            self._data.count(self._model.steps_per_execution)
            if self._checkpointing is not None:
                self._checkpointing.count_step()
        self._has_batch = False
