"""Writes one checkpoint at a time beside training."""

import os
import sys
import threading
import warnings

from easyscale.checkpoints import Checkpoint, Checkpoints
from easyscale.errors import EasyScaleWarning

__all__ = ["CheckpointWriter"]

_NAME = "easyscale-checkpoint"  # of the threads


class CheckpointWriter:
    """A thread for each checkpoint, which takes what training leaves of the cores.

    Args:
        checkpoints: `Checkpoints` to write to.

    Attributes:
        has_written: Bool. Whether the last one is on the disk. What cannot be written is a warning.
    """

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints = checkpoints
        self._thread: threading.Thread | None = None
        self.has_written = False

    def write(self, number: int, checkpoint: Checkpoint, is_last: bool) -> None:
        """Begin to write a checkpoint, when the one before is written. Its arrays must stay what they are until then.

        Args:
            number: Int. The steps so far.
            checkpoint: `Checkpoint`.
            is_last: Bool. Whether there is no training beside it, because this one is waited for.
        """
        self.finish()
        self._thread = threading.Thread(name=_NAME, target=self._write, args=(number, checkpoint, is_last), daemon=True)
        self._thread.start()

    @staticmethod
    def finish_all() -> None:
        """Return when those of earlier `fit()`s, which may have been interrupted, are written as well."""
        for thread in threading.enumerate():
            if thread.name == _NAME:
                thread.join()

    def finish(self) -> None:
        """Return when the last checkpoint is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, number: int, checkpoint: Checkpoint, is_last: bool) -> None:
        self.has_written = False
        if not is_last and sys.platform == "linux":  # elsewhere a thread has no priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            self._checkpoints.write(number, checkpoint)
            self.has_written = True
        except Exception as error:  # training must not end for it
            self.warn(error)

    def warn(self, error: Exception) -> None:
        """Say that a checkpoint is not written."""
        self.has_written = False
        wrong = getattr(error, "strerror", None) or error
        warnings.warn(
            f"a checkpoint must have room, in memory and in '{self._checkpoints.folder}'. Received: {wrong}. "
            "Training goes on, and the last one that was written stays",
            EasyScaleWarning,
            stacklevel=2,
        )
