"""Checkpoints of a `fit()`: writing them during training, and resuming from one.

State is saved before a step, and restored before the same step: so any effects of callbacks at the start of a run or an
epoch are overwritten. Every rank takes part: optimizer state is divided over ranks, and each rank has its own metrics,
random numbers and position in its data.
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

_ended_here: set[str] = set()  # folders with the final checkpoint of a `fit()` of this process


class Checkpointing:
    """Writes checkpoints of one `fit()`, and resumes from the last one. All methods are collective.

    Args:
        trained: The `ReplicatedModel`, or another `CheckpointedModel`.
        progress: The `FitProgress`.
        meetings: The `Meetings`.
        state: The `TrainingState`, or another `CheckpointedState`.
        data: The `DataPosition`.
        console: The `Console`.
        written: `Checkpoints` to write, or `None` to write none.
        source: `Checkpoints` to resume from.
        required: Bool. Whether there must be one to resume from.
        steps: Int. The interval between checkpoints in steps; 0 if it is in time.
        seconds: Float. The interval in seconds.
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
        self._resumed: tuple[Checkpoint, Path] | None = None  # with its folder, until its state is restored
        meetings.register(Purpose.CHECKPOINT, self.meet)

    @property
    def every(self) -> str:
        """The interval between checkpoints, in words."""
        return f"every {self._schedule}" if self._written is not None else "read only"

    # Start

    def begin(self) -> None:
        """Find a checkpoint, send it to all ranks, and make training start in its epoch."""
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
        if required and self._progress.number > 1:  # `--resume` applies to the first `fit()`
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
        if epoch >= self._progress.epochs:  # no step is left that would do this
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
        """Restore model, optimizers, callbacks and random numbers from the checkpoint, unless that has been done."""
        if self._resumed is None:
            return
        (checkpoint, folder), self._resumed = self._resumed, None
        self._state.put_back(checkpoint, folder)
        steps = checkpoint.about["steps"]
        self._progress.settle(steps)
        self._schedule.count_from(steps)
        self._schedule.begin(steps)

    # Changes of workers

    def take_over(self, steps: int) -> None:
        """Write checkpoints from now on, in place of a chief that has failed, perhaps while writing."""
        if self._saving is not None:
            self._saving.take_over(steps)

    def enter(self) -> None:
        """Join the others in the middle of training."""
        if self._saving is not None:
            self._saving.listen()

    def meet_at(self, steps: int) -> None:
        """Make ranks meet for a checkpoint at this step."""
        self._schedule.meet_at(steps)

    # Steps

    @property
    def needs_metrics(self) -> bool:
        """True if the first step must be traced before it is made, so that there are metrics to restore."""
        return self._resumed is not None

    def begin_epoch(self) -> None:
        """Start an epoch."""
        self._has_trained = True
        self._data.begin_epoch()

    @property
    def skips(self) -> bool:
        """True if the next step was made before the checkpoint, and is skipped: callbacks have already seen it."""
        return self._resumed is not None and self._data.is_behind(self._model.steps_per_execution)

    def skip(self, iterator: Iterator) -> tuple[Iterator, bool]:
        """Return the iterator to take data from, and whether a step made before the checkpoint was skipped."""
        iterator = self._data.follow(iterator)
        if self._resumed is None:
            return iterator, False
        if self._data.skip(iterator, self._model.steps_per_execution):
            return iterator, True
        self.put_back()
        return iterator, False

    def end_data(self) -> None:
        """Restore the state on a worker without data left in the checkpoint's epoch: others may still make a step."""
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
        """Write a checkpoint if one is due, with all ranks, including those without data.

        Args:
            steps: Int. The steps so far.
        """
        if self._saving is not None and self._saving.is_due(steps):
            self._meetings.reach(Purpose.CHECKPOINT, steps)
            self.meet(steps)

    def count_step(self) -> None:
        """Count a step that was made."""
        self._data.count(self._model.steps_per_execution)

    def meet(self, steps: int) -> None:
        """Write a checkpoint with the other ranks, or determine when one will be due.

        If some rank was asked to end, this ends all ranks.
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
        """Collect the state of all ranks; the chief writes it in the background. See `Saving.save`."""
        if self._saving is not None:
            self._saving.save(steps, ended, is_last)

    # End

    def end(self, together: Callable[[Callable[[], None]], None]) -> None:
        """Write the final checkpoint, and finish.

        Args:
            together: Function. Calls another, which all workers perform together, repeatedly if necessary.
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
