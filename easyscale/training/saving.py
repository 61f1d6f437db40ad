"""The checkpoints that a `fit()` writes."""

from pathlib import Path

from easyscale.checkpoint.folder import Checkpoints
from easyscale.checkpoint.writer import CheckpointWriter
from easyscale.errors import EasyScaleError
from easyscale.training.checkpoint_schedule import CheckpointSchedule
from easyscale.training.checkpointed import Parts, Workers
from easyscale.training.end_signal import EndSignal
from easyscale.training.whole_state import WholeState

__all__ = ["Saving"]

_PATIENCE = 10.0  # seconds to wait for another process, which may be about to end, to release the folder


class Saving:
    """Makes the chief write the state of all ranks to a folder, in the background. All methods are collective.

    Args:
        checkpoints: `Checkpoints` to write.
        state: `WholeState`.
        schedule: `CheckpointSchedule`.
        workers: `Workers`: all ranks.
        parts: `Parts`. Defaults to `None`: the chief has the whole checkpoint when it starts to write.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        state: WholeState,
        schedule: CheckpointSchedule,
        workers: Workers,
        parts: Parts | None = None,
    ):
        self._checkpoints, self._state, self._schedule, self._workers = checkpoints, state, schedule, workers
        self._parts = parts
        self._writer = CheckpointWriter(checkpoints) if parts is None else CheckpointWriter(checkpoints, parts.end)
        self._signal = EndSignal(workers.steps.ask_to_end)
        self._has_prepared = False  # whether this rank has prepared the folder

    @property
    def folder(self) -> Path:
        """The folder in which checkpoints are written."""
        return self._checkpoints.folder

    def prepare(self) -> None:
        """Create and lock the folder, on the chief.

        Raises:
            EasyScaleError: If it cannot be written, or another process has locked it.
        """
        if self._workers.communicator.is_chief and not self._has_prepared:
            try:
                self._checkpoints.prepare(_PATIENCE)
            except OSError as error:
                raise EasyScaleError(
                    f"`checkpoint` must be a folder that can be written. Received: '{self.folder}' ({error.strerror})"
                ) from None
            self._has_prepared = True

    def take_over(self, steps: int) -> None:
        """Write checkpoints from now on, in place of a chief that has failed, perhaps while writing."""
        try:
            self.prepare()
        except EasyScaleError as error:
            self._writer.warn(steps, error)

    def listen(self) -> None:
        """Make all workers end, with a last checkpoint, when this one receives SIGTERM."""
        self._signal.listen()

    def is_due(self, steps: int) -> bool:
        """Return whether ranks meet for a checkpoint after `steps` steps."""
        return self._workers.steps.asked_to_end or self._schedule.is_due(steps)

    def save(self, steps: int, ended: bool, is_last: bool) -> None:
        """Collect the state of all ranks; the chief writes it in the background.

        Args:
            steps: Int. The steps so far.
            ended: Bool. Whether `fit()` has ended.
            is_last: Bool. Whether nothing trains meanwhile, because this checkpoint is waited for.
        """
        self._finish()
        checkpoint = None
        communicator = self._workers.communicator
        has_room = communicator.all_gather_object(self._has_room(steps))
        if all(has_room):
            checkpoint = self._state.collect(steps, ended)
            if self._parts is not None:
                self._parts.answer()
        elif communicator.is_chief and has_room[0]:
            self._writer.warn(steps, MemoryError(f"too little memory on rank {has_room.index(False)}"))
        self._schedule.count_from(steps)
        if checkpoint is not None and communicator.is_chief:  # in a pipeline, the first rank of each stage has one
            self._writer.write(steps, checkpoint, is_last)

    def _has_room(self, steps: int) -> bool:
        """Return whether there is memory for a snapshot, or this rank's part, before ranks send theirs to the chief."""
        is_chief = self._workers.communicator.is_chief
        if is_chief:
            self.take_over(steps)
        elif self._parts is None:
            return True
        if is_chief and not self._has_prepared:
            return False
        try:
            self._state.reserve()
        except MemoryError as error:
            if is_chief:
                self._writer.warn(steps, error)
            return False
        return True

    def finish(self) -> bool:
        """Wait until the last checkpoint is written, or has failed; return whether it is written."""
        self._finish()
        return self._writer.has_written

    def _finish(self) -> None:
        self._writer.finish()
        if self._parts is not None:
            self._parts.finish()

    def stop(self) -> None:
        """Release the signal, and the folder as soon as the last checkpoint is written."""
        self._state.release()
        if self._has_prepared:
            self._writer.leave()
            self._has_prepared = False
        self._signal.stop()
