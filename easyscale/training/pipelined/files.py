"""Files of a model whose weights no rank has in full: the chief fetches each tensor from its stage while writing."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale import keras_internals
from easyscale.communicator import Communicator
from easyscale.errors import DesyncError
from easyscale.mesh import Mesh
from easyscale.parallel.pipeline.deferred import read_by
from easyscale.parallel.pipeline.inference import CALL
from easyscale.training.pipelined.own_stage import Needed, OwnStage

__all__ = ["StagedFiles"]

_FILE_ENDS, _HOOKS_END = -1, -2  # messages of the chief to the other stages, besides numbers of tensors


class StagedFiles:
    """Writes files of a model, the same as Keras writes for a whole one.

    The chief writes a file, and requests each tensor that it does not have when it gets to it: so it needs memory for
    only one of these at a time. The other stages of the first pipeline answer until the file is complete; other
    pipelines do nothing. Each weight, and each state, is sent once.

    Args:
        own: The `OwnStage` of this rank.
        mesh: The `Mesh`.
    """

    def __init__(self, own: OwnStage, mesh: Mesh):
        self._own = own
        self._stages: Communicator = mesh["model"]
        self._takes_part = mesh["data"].rank == 0

    def save(self, write: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call `write(*args, **kwargs)` on the chief, with the values of all stages. All ranks must call this."""
        if not self._takes_part:
            return
        needed = self._own.variables
        if self._stages.rank > 0:
            self._answer(needed, until=_FILE_ENDS)
            return
        numbers = {id(variable): number for number, (variable, _) in enumerate(needed)}
        try:
            with keras_internals.on_disk(), read_by(functools.partial(self._ask, needed, numbers)):
                write(*args, **kwargs)
        finally:
            self._tell(_FILE_ENDS)

    def answer_hooks(self) -> None:
        """Serve the chief's callbacks, which may write files, until they have been called. All ranks must call this."""
        if not self._takes_part:
            return
        if self._stages.rank > 0:
            self._answer(self._own.variables, until=_HOOKS_END)
        else:
            self._tell(_HOOKS_END)

    def _tell(self, what: int) -> None:
        for stage in range(1, self._stages.size):
            self._stages.send(np.array([what]), stage)

    def _ask(self, needed: Sequence[Needed], numbers: dict[int, int], variable: keras.Variable) -> Any:
        _, (owner, *_) = needed[numbers[id(variable)]]
        value = np.empty(variable.shape, np.dtype(variable.dtype))
        if value.size:
            self._stages.send(np.array([numbers[id(variable)]]), owner)
            self._stages.receive(value.reshape(-1), owner)
        return keras.ops.convert_to_tensor(value)

    def _answer(self, needed: Sequence[Needed], until: int) -> None:
        row = np.zeros(1, int)
        while row[0] != until:
            self._stages.receive(row, 0)
            if row[0] <= CALL:
                raise DesyncError(
                    "all ranks must call a model that was built in `scope()`. Received: a call of the first stage "
                    f"only, of {CALL - row[0]} samples. Call `predict` and `evaluate` on all ranks"
                )
            if row[0] >= 0:
                self._send(needed[row[0]])

    def answer(self, what: int) -> None:
        """Answer a request of the first stage, while this one waits for it to call the model."""
        if what == _HOOKS_END:
            raise DesyncError(
                "all ranks must call a model that was built in `scope()`. Received: a call on stage "
                f"{self._stages.rank} that the first one has left out. Call `predict` and `evaluate` on all ranks"
            )
        if what >= 0:
            self._send(self._own.variables[what])

    def _send(self, needed: Needed) -> None:
        variable, _ = needed
        self._stages.send(np.ascontiguousarray(backends.view_of(variable)).reshape(-1), 0)
