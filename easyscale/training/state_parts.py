"""What has state in a training, by name, and what is done with all of it or with some parts."""

from collections.abc import Iterable, Mapping

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.training.stateful import Large, State, Stateful

__all__ = ["StateParts"]


class StateParts:
    """The parts of a state. All ranks call each method alike.

    Args:
        memory: `SnapshotMemory`. Where copies of the large parts are.
        large: Dict. The parts that have large arrays, by name.
        others: Dict. All other parts, by name.
    """

    def __init__(self, memory: SnapshotMemory, large: Mapping[str, Large], others: Mapping[str, Stateful]):
        self.memory = memory
        self._large, self._parts = list(large.values()), {**large, **others}

    def has(self, name: str) -> bool:
        """Return whether there is such a part."""
        return name in self._parts

    def state(self, names: Iterable[str]) -> dict[str, State]:
        """Return the state of these parts."""
        return {name: part.state() for name, part in self._parts.items() if name in names}

    def load(self, states: Mapping[str, State]) -> None:
        """Load the state of some parts."""
        for name, state in states.items():
            self._parts[name].load(state)

    def reserve(self) -> None:
        """Find memory for a snapshot: the chief does, before ranks send it their parts.

        Raises:
            MemoryError: If there is too little.
        """
        self.memory.reserve([spec for part in self._large for spec in part.specs()])
