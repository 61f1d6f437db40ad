"""The base class of schedules, and their registry."""

import abc
import enum
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

from easyscale.discovery import Registry

__all__ = ["Action", "Kind", "Schedule", "available", "get", "register"]


class Kind(enum.Enum):
    """A stage's actions for a micro-batch. The first stage has no `RECEIVE_FORWARD`, and so on at both ends."""

    RECEIVE_FORWARD = "receive forward"
    FORWARD = "forward"
    SEND_FORWARD = "send forward"
    RECEIVE_BACKWARD = "receive backward"
    BACKWARD = "backward"
    SEND_BACKWARD = "send backward"


class Action(NamedTuple):
    """A single action of a stage.

    Attributes:
        kind: `Kind`.
        microbatch: Int, from 0.
    """

    kind: Kind
    microbatch: int


class Schedule(abc.ABC):
    """An order of the actions of each stage. It knows only numbers, not tensors.

    Attributes:
        name: String. The name for users, as in `Pipeline(schedule="1f1b")`.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def order(self, stage: int, stages: int, microbatches: int) -> Iterator[Action]:
        """Yield the actions of a stage as if it had one before and one after it. See `actions`."""

    def actions(self, stage: int, stages: int, microbatches: int) -> Iterator[Action]:
        """Yield the actions of a stage, in order.

        No schedule may deadlock between neighbours, even if a send only ends when the other side receives.

        Args:
            stage: Int, from 0.
            stages: Int. The number of stages.
            microbatches: Int. The number of micro-batches.
        """
        left_out = set()
        if stage == 0:
            left_out |= {Kind.RECEIVE_FORWARD, Kind.SEND_BACKWARD}
        if stage == stages - 1:
            left_out |= {Kind.SEND_FORWARD, Kind.RECEIVE_BACKWARD}
        yield from (action for action in self.order(stage, stages, microbatches) if action.kind not in left_out)

    @abc.abstractmethod
    def alive(self, stage: int, stages: int, microbatches: int) -> int:
        """Return the maximum number of micro-batches whose activations a stage keeps at once."""

    def bubble(self, stages: int, microbatches: int) -> float:
        """Return the fraction of a step in which a stage waits, if all are equally fast and sending takes no time."""
        return (stages - 1) / (microbatches + stages - 1)


_registry: Registry[Schedule] = Registry("schedule", __name__.rpartition(".")[0], also=" or a `Schedule`")


def register(name: str) -> Callable[[type[Schedule]], type[Schedule]]:
    """Register a class under `name`, for `get` and the tests."""
    return _registry.register(name)


def available() -> list[str]:
    """Return the names of all schedules, sorted.

    Example:

    >>> available()
    ['1f1b', 'gpipe']
    """
    return list(_registry.classes())


def get(identifier: str | Schedule) -> Schedule:
    """Return a schedule.

    Args:
        identifier: A schedule's name, or a `Schedule`.

    Raises:
        ValueError: If no schedule has this name.
    """
    return identifier if isinstance(identifier, Schedule) else _registry.find(identifier)()
