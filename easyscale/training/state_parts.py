"""The parts of a training state by name, and operations on all or some of them."""

from collections.abc import Iterable, Mapping

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.training.stateful import Large, State, Stateful

__all__ = ["StateParts"]


class StateParts:
    """The parts of a state. All methods are collective.

    Args:
        memory: `SnapshotMemory` for copies of the large parts.
        large: Dict. The parts with large arrays, by name.
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
        """Allocate memory for a snapshot, before ranks send the chief their parts.

        Raises:
            MemoryError: If there is too little.
        """
        self.memory.reserve([spec for part in self._large for spec in part.specs()])
