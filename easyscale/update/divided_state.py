"""An optimizer's state that is divided over ranks, and its collection into a whole."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from easyscale.backend import value_of, view_of
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Spec, specs_of
from easyscale.update.twin import Twin

__all__ = ["DividedState", "StateOfWholes"]


class DividedState:
    """The states of a `Twin` whose pieces are the owned parts of variables.

    Whole states are in Keras's order and shapes.

    Args:
        twin: `Twin`.
        shards: `Shards` of the variables.
        shapes: The shape of each variable.
    """

    def __init__(self, twin: Twin, shards: Shards, shapes: Sequence[tuple[int, ...]]):
        self._twin, self._shards, self._shapes = twin, shards, list(shapes)

    def collect(self, root: int | None = None, memory: SnapshotMemory | None = None) -> list[np.ndarray]:
        """Return all whole states. All ranks must call this.

        Args:
            root: Int. The rank that needs them. Defaults to `None`: all do.
            memory: `SnapshotMemory`. The memory for large ones. Defaults to `None`: newly allocated.
        """
        wholes = []
        for state, number in zip(self._twin.states, self._twin.numbers, strict=True):
            if number is None:
                wholes.append(value_of(state))
            else:
                whole = self._shards.collect(number, view_of(state), root, memory)
                wholes.append(whole.reshape(self._shapes[number]))
        return wholes

    def set(self, wholes: Sequence[np.ndarray]) -> None:
        """Set this rank's parts from whole states."""
        for state, number, whole in zip(self._twin.states, self._twin.numbers, wholes, strict=True):
            state.assign(whole if number is None else self._shards.part_of(number, whole))

    def specs(self) -> list[Spec]:
        """Return shape and dtype of each array for which `collect` uses the given memory."""
        own = zip(specs_of(self._twin.states), self._twin.numbers, strict=True)
        return [Spec((math.prod(self._shapes[number]),), dtype) for (_, dtype), number in own if number is not None]

    # Copies of parts: see `Backup`

    def own(self) -> list[np.ndarray]:
        """Return this rank's parts."""
        states = zip(self._twin.states, self._twin.numbers, strict=True)
        return [view_of(state) for state, number in states if number is not None]

    def parts_of(self, rank: int, wholes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return another rank's parts of whole states."""
        parts = self._shards.all_parts[rank]
        owned = zip(self._twin.numbers, wholes, strict=True)
        return [whole.reshape(-1)[parts[number]] for number, whole in owned if number is not None]

    def unite(self, found: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Return all whole states, given every rank's parts as bytes."""
        wholes, position = [], 0
        for state, number in zip(self._twin.states, self._twin.numbers, strict=True):
            value = value_of(state)
            if number is not None:
                whole = np.empty(self._shapes[number], value.dtype)
                for parts, ranges in zip(found, self._shards.all_parts, strict=True):
                    whole.reshape(-1)[ranges[number]] = parts[position].view(value.dtype)
                value, position = whole, position + 1
            wholes.append(value)
        return wholes


class StateOfWholes(DividedState):
    """The state of an optimizer that needs whole weights: each weight has a single owner.

    Every rank allocates the state of all weights, and uses only that of its own weights. It is not always known to
    which weight a state belongs, but only its owner has changed it.

    Args:
        twin: `Twin`, with whole pieces.
        shards: `Shards` of the variables, whole ones.
        shapes: The shape of each variable.
        communicator: The ranks.
    """

    def __init__(self, twin: Twin, shards: Shards, shapes: Sequence[tuple[int, ...]], communicator: Communicator):
        super().__init__(twin, shards, shapes)
        self._communicator = communicator
        self._digests: list[str] = []

    def collect(self, root: int | None = None, memory: SnapshotMemory | None = None) -> list[np.ndarray]:
        communicator, wholes = self._communicator, [view_of(state) for state in self._twin.states]
        changed = [_digest(whole) != was for whole, was in zip(wholes, self._digests, strict=True)]
        all_changed = communicator.all_gather_object(changed)
        if root in (None, communicator.rank):
            wholes = [np.array(whole) if memory is None else memory.copy(whole) for whole in wholes]
        for whole, by_rank in zip(wholes, zip(*all_changed, strict=True), strict=True):
            if any(by_rank):
                owner, flat = by_rank.index(True), whole.reshape(-1)
                if root is None:
                    communicator.broadcast(flat, root=owner)
                elif communicator.rank == owner != root:
                    communicator.isend(flat, root).wait()
                elif communicator.rank == root != owner:
                    communicator.ireceive(flat, owner).wait()
        return wholes

    def set(self, wholes: Sequence[np.ndarray]) -> None:
        self._digests = [_digest(whole) for whole in wholes]
        for state, whole in zip(self._twin.states, wholes, strict=True):
            state.assign(whole)

    def specs(self) -> list[Spec]:
        return specs_of(self._twin.states)


def _digest(array: np.ndarray) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
