"""Checkpoints of a `fit()`: how they are written while it is under way, and how training goes on from one.

State is taken before a step, and put back before the same step: so whatever callbacks do at the begin of a run or an
epoch, or in the steps that are skipped on the way, is overwritten. Every rank takes part: optimizer state is divided
over ranks, and each has metrics, random numbers and a position in its data of its own.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from easyscale.checkpoint.folder import Checkpoint, Checkpoints
from easyscale.checkpoint.writer import CheckpointWriter
from easyscale.errors import EasyScaleWarning, tell
from easyscale.keras_internals import set_initial_epoch
from easyscale.settings import RESTART
from easyscale.step.agreement import Purpose
from easyscale.training.checkpoint_schedule import CheckpointSchedule
from easyscale.training.checkpoint_source import CheckpointSource
from easyscale.training.checkpointed import CheckpointedModel, CheckpointedState, MeetingPlace
from easyscale.training.console import Console
from easyscale.training.data_position import DataPosition
from easyscale.training.fit_progress import FitProgress
from easyscale.training.saving import Saving
from easyscale.training.whole_state import WholeState

__all__ = ["Checkpointing"]

_ended_here: set[str] = set()  # folders with the end of a `fit()` of this process


class Checkpointing:
    """Writes checkpoints of one `fit()`, and goes on from the last one. All ranks call each method alike.

    Args:
        trained: The `ReplicatedModel`, or another `CheckpointedModel`.
        progress: The `FitProgress`.
        meetings: The `Meetings`.
        state: The `TrainingState`, or another `CheckpointedState`.
        data: The `DataPosition`.
        console: The `Console`.
        written: `Checkpoints` to write, or `None` to write none.
        source: `Checkpoints` to go on from.
        required: Bool. Whether there must be one to go on from.
        steps: Int. After so many steps one is written; 0 if time counts.
        seconds: Float. After so many seconds.
    """

    def __init__(
        self,
        trained: CheckpointedModel,
        progress: FitProgress,
        meetings: MeetingPlace,
        state: CheckpointedState,
        data: DataPosition,
        console: Console,
        written: Checkpoints | None,
        source: Checkpoints,
        required: bool,
        steps: int,
        seconds: float,
    ):
        self._model, self._workers = trained.model, trained.workers
        self._trained, self._progress, self._meetings = trained, progress, meetings
        self._data, self._console = data, console
        self._written, self._source, self._required = written, source, required
        self._communicator = self._workers.communicator
        self._state = WholeState(trained.model, trained.optimizers[0], state)
        self._parts = state.parts
        self._schedule = CheckpointSchedule(steps, seconds)
        self._saving: Saving | None = None
        if written is not None:
            self._saving = Saving(written, self._state, self._schedule, self._workers, self._parts)
        self._has_trained = False
        self._resumed: tuple[Checkpoint, Path] | None = None  # with its folder, until its state has been put back
        meetings.register(Purpose.CHECKPOINT, self.meet)

    @property
    def every(self) -> str:
        """When they are written, in words."""
        return f"every {self._schedule}" if self._written is not None else "read only"

    # The begin

    def begin(self) -> None:
        """Look for a checkpoint, give it to all ranks, and let training begin in its epoch."""
        CheckpointWriter.finish_all()
        if self._saving is not None:
            self._saving.prepare()
        source = self._find_source()
        resumed = source.read() if source is not None else None
        if source is not None and resumed is not None:
            self._resume(resumed, source.folder)
        self._schedule.begin(self._progress.steps)
        if self._saving is not None:
            self._saving.listen()

    def _find_source(self) -> CheckpointSource | None:
        source: Checkpoints | None = self._source
        required = self._required
        if required and self._progress.number > 1:  # `--resume` is for the first
            source, required = self._written, False
        if source is None:
            return None
        return CheckpointSource(source, self._written, required, self._communicator, self._parts)

    def _resume(self, checkpoint: Checkpoint, folder: Path) -> None:
        about = checkpoint.about
        self._state.check(about, folder)
        self._resumed = checkpoint, folder
        self._data.load(self._state.position_in_data(about, self._data.batch, folder))
        epoch = about["epoch"]
        if about["ended"] and about["stopped"]:
            epoch = max(epoch, self._progress.epochs)
        self._progress.move_to(epoch)
        set_initial_epoch(self._model, epoch)
        self._tell_how_it_goes_on(about["steps"], folder)
        if epoch >= self._progress.epochs:  # no step is left before which that would be done
            self._trained.build()
            self.put_back()

    def _tell_how_it_goes_on(self, steps: int, folder: Path) -> None:
        epoch = self._progress.epoch
        is_done = epoch >= self._progress.epochs
        if self._communicator.is_chief and is_done and os.path.realpath(folder) in _ended_here:
            tell(
                f"EasyScale: '{folder}' has the end of another `fit()` of this script: nothing is left to train. Give "
                "each `fit()` a folder of its own"
            )
        else:
            goes_on = "nothing is left to train" if is_done else f"goes on in epoch {epoch + 1}"
            self._console.say(f"{goes_on}, from '{folder}', after {steps} steps")

    def put_back(self) -> None:
        """Give model, optimizers, callbacks and random numbers the state of the checkpoint, if that was not done."""
        if self._resumed is None:
            return
        (checkpoint, folder), self._resumed = self._resumed, None
        self._state.put_back(checkpoint, folder)
        steps = checkpoint.about["steps"]
        self._progress.settle(steps)
        self._schedule.count_from(steps)
        self._schedule.begin(steps)

    # Other workers

    def take_over(self, steps: int) -> None:
        """Write what is written from now on, in place of a chief that has failed, perhaps while it wrote."""
        if self._saving is not None:
            self._saving.take_over(steps)

    def enter(self) -> None:
        """Begin in the middle of the others' training."""
        if self._saving is not None:
            self._saving.listen()

    def meet_at(self, steps: int) -> None:
        """Let ranks meet for a checkpoint at this step."""
        self._schedule.meet_at(steps)

    # Steps

    @property
    def needs_metrics(self) -> bool:
        """Whether the first step has to be traced before it is made, so that there are metrics to put back."""
        return self._resumed is not None

    def begin_epoch(self) -> None:
        """Take in that an epoch begins."""
        self._has_trained = True
        self._data.begin_epoch()

    @property
    def skips(self) -> bool:
        """Whether the next step had been made before, and is skipped: callbacks have seen it."""
        return self._resumed is not None and self._data.is_behind(self._model.steps_per_execution)

    def skip(self, iterator: Iterator) -> tuple[Iterator, bool]:
        """Return what to take data from, and whether a step was skipped that had been made before."""
        iterator = self._data.follow(iterator)
        if self._resumed is None:
            return iterator, False
        if self._data.skip(iterator, self._model.steps_per_execution):
            return iterator, True
        self.put_back()
        return iterator, False

    def end_data(self) -> None:
        """Put state back on a worker that had no data left in the epoch of the checkpoint: others may make a step."""
        if self._resumed is not None and self._data.missing and self._communicator.is_chief:
            here, epoch, (_, folder) = self._data.calls, self._progress.epoch + 1, self._resumed
            warnings.warn(
                "an epoch should have as many steps as when the checkpoint was written. Received: "
                f"{here + self._data.missing} of epoch {epoch} in '{folder}', and an epoch of {here} now. "
                "It is taken as over. Use the same data and global batch to go on in the same step",
                EasyScaleWarning,
                stacklevel=2,
            )
        self.put_back()

    def before_step(self, steps: int) -> None:
        """Write a checkpoint if it is time, with all ranks, also those that have no data left.

        Args:
            steps: Int. The steps so far.
        """
        if self._saving is not None and self._saving.is_due(steps):
            self._meetings.reach(Purpose.CHECKPOINT, steps)
            self.meet(steps)

    def count_step(self) -> None:
        """Take in that a step was made."""
        self._data.count(self._model.steps_per_execution)

    def meet(self, steps: int) -> None:
        """Write a checkpoint with the other ranks, or find out when it will be time.

        If some rank was asked to end, this ends all.
        """
        asked = self._workers.steps.asked_to_end
        elapsed, made = self._communicator.all_gather_rows(self._schedule.so_far(steps))[0]
        is_time = asked or self._schedule.is_time(elapsed)
        if is_time:
            self.save(steps, is_last=asked)
        self._schedule.plan(steps, elapsed, made, is_time)
        if asked and self._saving is not None:
            last = "" if self._saving.finish() else "the last checkpoint could not be written; "
            if self._communicator.is_chief:
                print(f"EasyScale: asked to end; {last}start again to go on from '{self._saving.folder}'", flush=True)
            raise SystemExit(RESTART)

    def save(self, steps: int, ended: bool = False, is_last: bool = False) -> None:
        """Take the state of all ranks; the chief writes it beside training. See `Saving.save`."""
        if self._saving is not None:
            self._saving.save(steps, ended, is_last)

    # The end

    def end(self, together: Callable[[Callable[[], None]], None]) -> None:
        """Write a checkpoint of the end, and be done.

        Args:
            together: Function. Calls another, which all workers do together, if need be again.
        """
        if self._saving is not None and self._has_trained:
            self._data.end()
            together(lambda: self.save(self._progress.steps, ended=True, is_last=True))
            self._saving.finish()
            _ended_here.add(os.path.realpath(self._saving.folder))
        self.stop()

    def stop(self) -> None:
        """Leave the `fit()`."""
        if self._saving is not None:
            self._saving.stop()
