"""Interfaces that checkpointing requires of a `fit()`, for whole models on each rank as well as stages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import keras
import numpy as np

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.optimizer import DistributedOptimizer
from easyscale.step.agreement import Purpose
from easyscale.training.stateful import State, Stateful

__all__ = ["CheckpointedModel", "CheckpointedState", "MeetingPlace", "Parts", "Steps", "Workers"]


class Steps(Protocol):
    """The steps of all ranks, which may be asked to end by a signal to one of them."""

    @property
    def asked_to_end(self) -> bool:
        """True if some rank was asked to end, as of the last meeting of all ranks."""

    def ask_to_end(self) -> None:
        """Make all ranks end together."""


class Workers(Protocol):
    """All ranks."""

    @property
    def communicator(self) -> Communicator: ...

    @property
    def steps(self) -> Steps: ...


class CheckpointedModel(Protocol):
    """A model in training."""

    @property
    def model(self) -> keras.Model: ...

    @property
    def workers(self) -> Workers: ...

    @property
    def optimizers(self) -> Sequence[DistributedOptimizer]:
        """The optimizers of the model, synchronized over the workers, each with its own data."""

    def build(self) -> None:
        """Build everything that the first step would build."""


class MeetingPlace(Protocol):
    """The synchronization points of ranks. See `Meetings`."""

    def register(self, purpose: Purpose, act: Callable[[int], None]) -> None: ...

    def reach(self, purpose: Purpose, detail: int = 0) -> None: ...


class Described(Stateful, Protocol):
    """A part of a state, with a description of what it belongs to."""

    def describe(self) -> list:
        """Return the description, for JSON."""


class DescribedMetrics(Stateful, Protocol):
    """States of metrics. If the first step creates the metrics, a state loaded before is kept until then."""

    def describe(self) -> list[list] | None: ...


class DerivedSeeds(Stateful, Protocol):
    """Random number generators of layers."""

    def derive(self, state: State) -> None:
        """Derive this worker's random numbers from another's."""


class Parts(Protocol):
    """The parts of a checkpoint on each rank, if no rank has the whole of it at once."""

    def answer(self) -> None:
        """Serve this rank's copies to the chief while it writes."""

    def end(self) -> None:
        """Notify the other ranks, on the chief, that it no longer needs their copies."""

    def finish(self) -> None:
        """Wait until the chief no longer needs this rank's copies."""

    def hand_out(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays that this rank needs from a file that the chief reads. All ranks must call this."""


class CheckpointedState(Protocol):
    """The state of a `fit()`. See `TrainingState`.

    Attributes:
        memory: `SnapshotMemory` for copies of large arrays.
        parts: `Parts`. `None` if the chief has the whole checkpoint.
    """

    memory: SnapshotMemory
    parts: Parts | None

    @property
    def weights(self) -> Described: ...

    @property
    def optimizers(self) -> Described: ...

    @property
    def metrics(self) -> DescribedMetrics: ...

    @property
    def seeds(self) -> DerivedSeeds: ...

    def has(self, name: str) -> bool: ...

    def state(self, names: Iterable[str]) -> dict[str, State]: ...

    def load(self, states: Mapping[str, State]) -> None: ...

    def reserve(self) -> None: ...
