"""Writes one checkpoint at a time beside training."""

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
    """Return a thread that calls `act(*args)`, for a checkpoint. `CheckpointWriter.finish_all` waits for it."""
    thread = threading.Thread(name=_NAME, target=act, args=args, daemon=True)
    thread.start()
    return thread


class CheckpointWriter:
    """A thread for each checkpoint, which takes what training leaves of the cores.

    Args:
        checkpoints: `Checkpoints` to write to.
        on_end: Function. Is called in the thread when a checkpoint is written, or cannot be. Defaults to none.

    Attributes:
        has_written: Bool. Whether the last one is on the disk. What cannot be written is a warning.
    """

    def __init__(self, checkpoints: Checkpoints, on_end: Callable[[], None] = lambda: None):
        self._checkpoints, self._on_end = checkpoints, on_end
        self._thread: threading.Thread | None = None
        self.has_written = False
        self._failures = self._removed = 0  # since one was written; of the last that was told of
        self._leaves, self._turn = False, threading.Lock()

    def write(self, number: int, checkpoint: Checkpoint, is_last: bool) -> None:
        """Begin to write a checkpoint, when the one before is written. Its arrays must stay what they are until then.

        Args:
            number: Int. The steps so far.
            checkpoint: `Checkpoint`.
            is_last: Bool. Whether there is no training beside it, because this one is waited for.
        """
        self.finish()
        self._thread = start_beside(self._write, number, checkpoint, is_last)

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

    def leave(self) -> None:
        """Let other processes have the folder, as soon as the last checkpoint is written."""
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
        except Exception as error:  # training must not end for it
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
        """Say that a checkpoint is not written: the first time, the second, the fourth, ..., and at the end.

        Args:
            number: Int. The steps so far.
            error: What was raised.
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
