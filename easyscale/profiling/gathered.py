"""The recordings of all ranks, gathered on the chief."""

import json
from typing import Any, NamedTuple

import numpy as np

from easyscale.communicator import Communicator
from easyscale.timeline import Span

__all__ = ["Recorded", "gather"]


class Recorded(NamedTuple):
    """A rank's recording of a `fit()`.

    Attributes:
        rank: Int.
        host: String.
        parts: Dict. The seconds of each part of a step, averaged over steps.
        waits: Dict. By step number, the seconds that the rank has waited for others.
        spans: List of `Span` so far, in nanoseconds on the chief's clock.
    """

    rank: int
    host: str
    parts: dict[str, float]
    waits: dict[int, float]
    spans: list[Span]

    @property
    def step(self) -> float:
        """Mean seconds of a step."""
        return sum(self.parts.values())


def gather(communicator: Communicator, offsets: list[float], sends_spans: bool) -> list[Recorded]:
    """Return all ranks' recordings on rank 0, an empty list on the others. Collective: all ranks call this.

    Args:
        communicator: The `Communicator`.
        offsets: Seconds by which each rank's clock is ahead of the chief's.
        sends_spans: Bool. Whether to gather spans, too.
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
    """Return all ranks' values on rank 0, in rank order; an empty list on the others. Values are sent as JSON."""
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
