"""`tf.train.Checkpoint` and `CheckpointManager` in a script that runs on every rank: the chief writes, the others wait.

All ranks must write at the same places of the script.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from easyscale import called
from easyscale.auto.failing import failing_together
from easyscale.communicator import Communicator
from easyscale.when_imported import when_imported

__all__ = ["TensorFlowCheckpoints"]


class TensorFlowCheckpoints:
    """Patches TensorFlow, as soon as it is imported.

    Args:
        communicator: `Communicator`. The constructor is collective.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator.duplicate()
        self._process, self._is_inside = os.getpid(), False  # a method that calls another one
        when_imported("tensorflow", self._replace)

    def _replace(self) -> None:
        train: Any = sys.modules["tensorflow"].train
        for kind, name, follow in (
            (train.Checkpoint, "write", lambda checkpoint, path: None),
            (train.Checkpoint, "save", self._count),
            (train.CheckpointManager, "save", self._look_again),
        ):
            setattr(kind, name, self._on_chief(getattr(kind, name), follow))
        self._begin = begin = train.CheckpointManager.__init__

        @functools.wraps(begin)
        def begin_noted(manager: Any, *args: Any, **kwargs: Any) -> None:
            begin(manager, *args, **kwargs)
            manager._easyscale_arguments = args, kwargs

        train.CheckpointManager.__init__ = begin_noted

    def _on_chief(self, original: Callable, follow: Callable[[Any, str], None]) -> Callable:
        """Return a method that writes on the chief; `follow` brings another rank's object to the same state."""

        @functools.wraps(original)
        def write(checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
            is_scripts = called.names or os.getpid() != self._process  # it calls EasyScale itself, or has forked
            if self._is_inside or is_scripts:
                return original(checkpoint, *args, **kwargs)
            path, is_chief = None, self._communicator.is_chief
            with failing_together(self._communicator, of_chief=True):
                if is_chief:
                    self._is_inside = True
                    try:
                        path = original(checkpoint, *args, **kwargs)
                    finally:
                        self._is_inside = False
            path = self._communicator.all_gather_object(path)[0]
            if path is not None and not is_chief:
                follow(checkpoint, path)
            return path

        return write

    def _count(self, checkpoint: Any, path: str) -> None:
        checkpoint.save_counter.assign_add(1)

    def _look_again(self, manager: Any, path: str) -> None:
        self._count(manager.checkpoint, path)
        args, kwargs = manager._easyscale_arguments
        self._begin(manager, *args, **kwargs)  # reads which checkpoints there are
