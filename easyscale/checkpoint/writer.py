"""Writing of checkpoints in the background, one at a time."""

import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from easyscale.checkpoint.folder import Checkpoint, Checkpoints
from easyscale.errors import EasyScaleWarning, tell

__all__ = ["CheckpointWriter", "start_beside"]

_NAME = "easyscale-checkpoint"  # of the threads


def start_beside(act: Callable[..., None], *args: Any) -> threading.Thread:
    """Start and return a checkpoint thread that calls `act(*args)`. `CheckpointWriter.finish_all` waits for it."""
    thread = threading.Thread(name=_NAME, target=act, args=args, daemon=True)
    thread.start()
    return thread


class CheckpointWriter:
    """Writer of checkpoints, each in a background thread of low priority.

    Args:
        checkpoints: `Checkpoints` to write to.
        on_end: Function. Called in the thread when a checkpoint has been written, or has failed. Defaults to none.

    Attributes:
        has_written: Bool. Whether the last checkpoint is on the disk. A failure to write is a warning.
    """

    def __init__(self, checkpoints: Checkpoints, on_end: Callable[[], None] = lambda: None):
        self._checkpoints, self._on_end = checkpoints, on_end
        self._thread: threading.Thread | None = None
        self.has_written = False
        self._failures = self._removed = 0  # failures since the last success; removals last reported
        self._leaves, self._turn = False, threading.Lock()

    def write(self, number: int, checkpoint: Checkpoint, is_last: bool) -> None:
        """Start to write a checkpoint after the one before is written. Its arrays must not change until it is written.

        Args:
            number: Int. The number of steps so far.
            checkpoint: `Checkpoint`.
            is_last: Bool. Whether nothing trains while it is written, because it is waited for.
        """
        self.finish()
        self._thread = start_beside(self._write, number, checkpoint, is_last)

    @staticmethod
    def finish_all() -> None:
        """Wait until all checkpoints are written, also those of earlier `fit()`s that may have been interrupted."""
        for thread in threading.enumerate():
            if thread.name == _NAME:
                thread.join()

    def finish(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def leave(self) -> None:
        """Release the folder to other processes, as soon as the last checkpoint is written."""
        with self._turn:
            self._leaves = True
            if self._thread is None or not self._thread.is_alive():
                self._checkpoints.leave()

    def _write(self, number: int, checkpoint: Checkpoint, is_last: bool) -> None:
        self.has_written = False
        if not is_last and sys.platform == "linux":  # elsewhere a thread has no priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            self._checkpoints.write(number, checkpoint)
        except Exception as error:  # it must not end training
            self.warn(number, error, is_last)
        else:
            self.has_written = True
            self._tell_of_room(number)
        finally:
            self._on_end()
            with self._turn:
                if self._leaves:
                    self._checkpoints.leave()

    def _tell_of_room(self, number: int) -> None:
        if self._failures:
            tell(f"EasyScale: checkpoints are written again, at step {number}")
        self._failures = 0
        if (removed := self._checkpoints.removed) > self._removed:
            warnings.warn(
                f"a disk must have room for as many checkpoints as `keep` says, and one more. Received: a full one, "
                f"'{self._checkpoints.folder}'. {removed} older made room for that of step {number}",
                EasyScaleWarning,
                stacklevel=2,
            )
        self._removed = removed

    def warn(self, number: int, error: Exception, is_last: bool = False) -> None:
        """Warn that a checkpoint is not written: the first time, the second, the fourth, ..., and at the end.

        Args:
            number: Int. The number of steps so far.
            error: The exception.
            is_last: Bool. Whether no other will be tried.
        """
        self.has_written = False
        self._failures += 1
        if not is_last and self._failures & (self._failures - 1):
            return
        newest = self._checkpoints.newest()
        stays = "there is none: a job that is started again begins anew"
        if newest is not None:
            stays = f"the last one that was written stays, that of step {newest}, {number - newest} steps back"
        times = f", after {self._failures} such failures at step {number}" * (self._failures > 1)
        warnings.warn(
            f"a checkpoint must have room, in memory and in '{self._checkpoints.folder}'. Received: "
            f"{getattr(error, 'strerror', None) or error}. Training goes on{times}, and {stays}",
            EasyScaleWarning,
            stacklevel=2,
        )
