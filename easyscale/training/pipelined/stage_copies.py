"""Arrays of a checkpoint that no rank has in full: their transfer between stages and the file."""

import atexit
import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from easyscale.checkpoint.file import StoredArrays
from easyscale.checkpoint.writer import CheckpointWriter, start_beside
from easyscale.communicator.wait import Wait, wait_patiently
from easyscale.errors import PeerError
from easyscale.layout.specs import Spec
from easyscale.mesh import Mesh
from easyscale.training.broadcast_arrays import dtype_name

__all__ = ["StageCopies"]

_END = -1  # a message of the chief to the other stages, besides numbers of arrays


class StageCopies:
    """The parts of a checkpoint on the ranks of the stages that they belong to. Implements `Parts`.

        chief, in the writer thread            stage s, in a background thread
        the number of an array  ------------------>
                                <------------------  the copy
        ...
        end                     ------------------>

    While a checkpoint is written, a rank of the first pipeline has a copy of its own part, and the chief one array
    more. Each array of another stage is sent once, after a request of 8 bytes; other pipelines do nothing. If the chief
    starts over, as on a full disk, it requests the arrays again.

    To resume training, the chief reads one array after the other, and sends it to each stage of the first pipeline that
    needs it, which broadcasts it to the other ranks of that stage.

    Args:
        mesh: The `Mesh`, with the axes `"data"` and `"model"`.
        needed: Function. Returns, for each array by name, the stages that need it; the first of them has it. Arrays
            that all stages need are left out. It is the same on all ranks, in the same order.
    """

    def __init__(self, mesh: Mesh, needed: Callable[[], Mapping[str, Sequence[int]]]):
        self._along, self._across, self._world = mesh["model"], mesh["data"], mesh.communicator
        self._beside = mesh.beside("model")
        self._needed = needed
        self._held: dict[str, np.ndarray] = {}
        self._names: list[str] = []
        self._thread: threading.Thread | None = None

    # Writing a checkpoint

    def hold(self, specs: Mapping[str, Spec], own: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Keep the copies of this rank. Return the arrays of all stages on the chief, nothing elsewhere.

        Those of other stages are fetched when they are written.

        Args:
            specs: Dict. The `Spec` of each array, by name.
            own: Dict. The copies of this rank's arrays.
        """
        self._held |= own
        if not self._world.is_chief:
            return {}
        # `checkpoint.file.write` accepts anything that has a dtype and converts to an array.
        return {
            name: own[name] if name in own else cast(np.ndarray, _Later(spec, name, self._ask))
            for name, spec in specs.items()
        }

    def answer(self) -> None:
        needed = self._needed()
        self._names = list(needed)
        self._owners = {name: stages[0] for name, stages in needed.items()}
        if self._across.rank == 0:
            _finish_at_exit()
            if self._along.rank > 0:
                self._thread = start_beside(self._answer, dict(self._held))

    def _answer(self, held: Mapping[str, np.ndarray]) -> None:
        wait_patiently()
        row = np.zeros(1, int)
        with contextlib.suppress(PeerError):  # the chief has failed, or has left: it writes nothing more
            while row[0] != _END:
                asked = self._beside.ireceive(row, 0)
                self._beside.poll(asked.done, Wait("waits for the chief to write", lambda: [0], stalls=False))
                asked.wait()
                if row[0] != _END:
                    self._beside.send(held[self._names[row[0]]].reshape(-1), 0)

    def _ask(self, name: str, spec: Spec) -> np.ndarray:
        wait_patiently()
        value, owner = np.empty(*spec), self._owners[name]
        if value.size:
            self._beside.send(np.array([self._names.index(name)]), owner)
            self._beside.receive(value.reshape(-1), owner)
        return value

    def end(self) -> None:
        with contextlib.suppress(PeerError):  # a stage has failed
            for stage in range(1, self._beside.size):
                self._beside.send(np.array([_END]), stage)

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # Resuming from one

    def hand_out(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays that this rank needs from a file. Those that only others need are empty.

        Args:
            arrays: `StoredArrays`, on the chief.
        """
        own = {name: [dtype_name(spec.dtype), list(spec.shape)] for name, spec in _specs_of(arrays).items()}
        needed, everyone = self._needed(), range(self._along.size)
        found = {}
        for name, (dtype, shape) in self._world.all_gather_object(own)[0].items():
            stages = needed.get(name, everyone)
            found[name] = np.empty(0, np.dtype(dtype))
            if self._world.is_chief:
                value = self._give(arrays[name], stages)
            elif self._along.rank in stages:
                value = self._take(np.empty(shape, np.dtype(dtype)))
            else:
                continue
            if self._along.rank in stages:
                found[name] = value
                if value.size:
                    self._across.broadcast(value.reshape(-1))
        return found

    def _give(self, value: np.ndarray, stages: Sequence[int]) -> np.ndarray:
        for stage in stages if value.size else ():
            if stage != self._along.rank:
                self._along.send(value.reshape(-1), stage)
        return value

    def _take(self, value: np.ndarray) -> np.ndarray:
        if self._across.rank == 0 and value.size:
            self._along.receive(value.reshape(-1), 0)
        return value


class _Later:
    """An array of another stage. It is fetched, and takes memory, when it is written.

    Args:
        spec: The `Spec` of the array.
        name: String. Its name.
        ask: Function. Returns the array, by name and `Spec`.
    """

    def __init__(self, spec: Spec, name: str, ask: Callable[[str, Spec], np.ndarray]):
        self._spec, self._name, self._ask = spec, name, ask
        self.dtype, self.nbytes = spec.dtype, spec.nbytes

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return self._ask(self._name, self._spec)


def _specs_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Spec]:
    return {name: arrays.spec(name) for name in arrays} if isinstance(arrays, StoredArrays) else {}


@functools.cache
def _finish_at_exit() -> None:
    """Finish checkpoints before this process leaves the others, also after an interruption."""
    atexit.register(CheckpointWriter.finish_all)
