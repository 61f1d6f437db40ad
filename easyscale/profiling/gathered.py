"""What each rank has recorded, at the chief."""

import json
from typing import Any, NamedTuple

import numpy as np

from easyscale.communicator import Communicator
from easyscale.timeline import Span

__all__ = ["Recorded", "gather"]


class Recorded(NamedTuple):
    """What a rank has recorded in a `fit()`.

    Attributes:
        rank: Int.
        host: String.
        parts: Dict. The seconds of each part in a step, the mean over steps.
        waits: Dict. By the number of a step the seconds that it has waited for others in it.
        spans: List of `Span`, so far; nanoseconds on the chief's clock.
    """

    rank: int
    host: str
    parts: dict[str, float]
    waits: dict[int, float]
    spans: list[Span]

    @property
    def step(self) -> float:
        """The seconds of a step."""
        return sum(self.parts.values())


def gather(communicator: Communicator, offsets: list[float], sends_spans: bool) -> list[Recorded]:
    """Return what each rank has recorded, on rank 0; nothing on the others. All ranks must call this.

    Args:
        communicator: The `Communicator`.
        offsets: By how many seconds each rank's clock is ahead of the chief's.
        sends_spans: Bool. Whether spans are wanted, too.
    """
    timeline = communicator.timeline
    spans = [list(span) for span in timeline.spans] if sends_spans else []
    all_ranks = _at_chief(communicator, [communicator.host, timeline.times, list(timeline.waits.items()), spans])
    return [_recorded(rank, offsets[rank], *found) for rank, found in enumerate(all_ranks)]


def _recorded(rank: int, offset: float, host: str, times: dict, waits: list, spans: list) -> Recorded:
    steps, ahead = max(1, len(waits)), round(1e9 * offset)
    aligned = [
        Span(name, begin - ahead, end - ahead, thread, step) for name, begin, end, thread, step in spans if end > begin
    ]
    parts = {name: 1e-9 * nanoseconds / steps for name, nanoseconds in times.items()}
    return Recorded(rank, host, parts, {number: 1e-9 * wait for number, wait in waits}, aligned)


def _at_chief(communicator: Communicator, value: Any) -> list[Any]:
    """Return every rank's value on rank 0, in the order of ranks; nothing on the others. It travels as JSON."""
    message, length = np.frombuffer(json.dumps(value).encode(), np.uint8), np.zeros(1, np.int64)
    if communicator.rank:
        length[0] = message.size
        communicator.send(length, 0)
        communicator.send(message, 0)
        return []
    found = [value]
    for rank in range(1, communicator.size):
        communicator.receive(length, rank)
        message = np.zeros(length[0], np.uint8)
        communicator.receive(message, rank)
        found.append(json.loads(message.tobytes()))
    return found
