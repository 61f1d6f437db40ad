"""What checkpoints of a `fit()` ask of it, whether each rank has the whole model or a stage."""

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
    """The steps of all ranks, as far as one of them may be asked to end by a signal."""

    @property
    def asked_to_end(self) -> bool:
        """Whether some rank was asked to end, as far as all know since they met the last time."""

    def ask_to_end(self) -> None:
        """Have all ranks end together."""


class Workers(Protocol):
    """All ranks."""

    @property
    def communicator(self) -> Communicator: ...

    @property
    def steps(self) -> Steps: ...


class CheckpointedModel(Protocol):
    """A model that is trained."""

    @property
    def model(self) -> keras.Model: ...

    @property
    def workers(self) -> Workers: ...

    @property
    def optimizers(self) -> Sequence[DistributedOptimizer]:
        """Those by which workers, which have other data than each other, train it."""

    def build(self) -> None:
        """Make what the first step would make."""


class MeetingPlace(Protocol):
    """Where ranks meet. See `Meetings`."""

    def register(self, purpose: Purpose, act: Callable[[int], None]) -> None: ...

    def reach(self, purpose: Purpose, detail: int = 0) -> None: ...


class Described(Stateful, Protocol):
    """A part of a state that says what it is of."""

    def describe(self) -> list:
        """Return that, for JSON."""


class DescribedMetrics(Stateful, Protocol):
    """States of metrics, which may be made by the first step: then what is loaded is kept until it is made."""

    def describe(self) -> list[list] | None: ...


class DerivedSeeds(Stateful, Protocol):
    """Random numbers of layers."""

    def derive(self, state: State) -> None:
        """Make this worker's random numbers those that follow from another's."""


class Parts(Protocol):
    """The parts of a checkpoint that ranks have, where none has all of it at once."""

    def answer(self) -> None:
        """Let the chief have this rank's copies while it writes."""

    def end(self) -> None:
        """Say, on the chief, that it has no need of the others' copies any more."""

    def finish(self) -> None:
        """Return when the chief needs none of this rank's copies any more."""

    def hand_out(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what this rank needs of a file that the chief reads. All ranks must call this."""


class CheckpointedState(Protocol):
    """What has state in a `fit()`. See `TrainingState`.

    Attributes:
        memory: `SnapshotMemory`. Where copies of what is large are.
        parts: `Parts`. `None` if the chief has all of a checkpoint.
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
