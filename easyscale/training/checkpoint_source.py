"""The checkpoint from which training resumes: the last undamaged one of a folder, sent to all ranks."""

import warnings
from pathlib import Path

from easyscale.checkpoint import file as checkpoint_file
from easyscale.checkpoint.folder import Checkpoint, Checkpoints
from easyscale.communicator import Communicator
from easyscale.errors import EasyScaleError, EasyScaleWarning
from easyscale.training.broadcast_arrays import broadcast_arrays
from easyscale.training.checkpoint_contents import check_contents
from easyscale.training.checkpointed import Parts

__all__ = ["CheckpointSource"]


class CheckpointSource:
    """Finds the checkpoint to resume from. Reports damaged ones, and skips them.

    Args:
        source: `Checkpoints` to resume from.
        written: `Checkpoints` to write, possibly in another folder, or `None`. A later one there, written by this run
            before a restart, takes precedence.
        required: Bool. Whether there must be a checkpoint.
        communicator: The `Communicator`.
        parts: `Parts`. Defaults to `None`: each rank receives the whole checkpoint.
    """

    def __init__(
        self,
        source: Checkpoints,
        written: Checkpoints | None,
        required: bool,
        communicator: Communicator,
        parts: Parts | None = None,
    ):
        self._source, self._written, self._required = source, written, required
        self._communicator, self._parts = communicator, parts

    @property
    def folder(self) -> Path:
        """The folder that is searched for checkpoints."""
        return self._source.folder

    def read(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, or `None`. All ranks must call this.

        Raises:
            EasyScaleError: If there is none although one is required, or it is not one of this EasyScale's.
        """
        found = self._find() if self._communicator.is_chief else None
        about = self._communicator.all_gather_object(found and found.about)[0]
        if about is None:
            if self._required:
                raise EasyScaleError(
                    f"`--resume` needs a folder with a checkpoint that is whole. Received: '{self.folder}', "
                    "which has none. Leave it out to begin anew"
                )
            return None
        arrays = found.arrays if found else {}
        if self._parts is not None:
            return Checkpoint(about, self._parts.hand_out(arrays))
        return Checkpoint(about, broadcast_arrays(self._communicator, arrays, root=0))

    def _find(self) -> Checkpoint | None:
        load = checkpoint_file.read if self._parts is None else checkpoint_file.open_whole
        found, wrong = self._source.read(load)
        if self._written is not None and self._written.folder != self.folder:
            later, _ = self._written.read(load)
            for checkpoint, folder in ((found, self.folder), (later, self._written.folder)):
                if checkpoint is not None:
                    check_contents(checkpoint.about, folder)
            if found and later and later.about["steps"] > found.about["steps"]:
                found, wrong = later, {}
        self._tell_what_is_passed_over(begins=found is None and not self._required)
        goes_on = "The one before it is taken" if found else "None is whole: training begins anew"
        is_lost = self._required and found is None
        for number, path in enumerate(wrong, 1):
            if self._written is not None and path.parent == self._written.folder and not is_lost:
                self._written.set_aside(path)  # else it would count as one of those to keep
            warnings.warn(
                f"a checkpoint must be whole. Received: {wrong[path]}"
                + f". {goes_on}" * (number == len(wrong) and not is_lost),
                EasyScaleWarning,
                stacklevel=2,
            )
        if found is not None:
            check_contents(found.about, self.folder)
        return found

    def _tell_what_is_passed_over(self, begins: bool) -> None:
        passed = self._source.passed_over()
        if passed:
            files = ", ".join(f"'{path}', which is {reason}" for path, reason in passed.items())
            begins_anew = ". None is whole: training begins anew" * begins
            warnings.warn(
                f"a checkpoint must be a file. Received: {files}. Passed over{begins_anew}",
                EasyScaleWarning,
                stacklevel=2,
            )
