"""The alpha-beta-gamma model of a training step: latency, bandwidth, memory; with overlap and stragglers.

    exchange = alpha * steps + beta * bytes + gamma * memory          each exchange's `critical_path`
    hidden   = min(overlap * exchange, 2 / 3 * compute)               behind the backward pass, two thirds of the work
    slowest  = compute * (1 + spread * z(P))                          z(P): the expected largest of P normal numbers
    step     = slowest + exchange - hidden

Reference: Hockney, "The communication challenge for MPP", 1994, for alpha and beta; Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", 2005, for all three.
"""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from easyscale.exchange.exchange import Exchange, Path

__all__ = [
    "ALONE",
    "Machine",
    "Step",
    "crossover_bytes",
    "crossovers",
    "exchange_seconds",
    "fastest",
    "plan",
    "slowest",
]

ALONE = "one rank"
Measured = Callable[[str, int, int], float | None]  # takes the name of an exchange, a number of ranks and of bytes


class Machine(NamedTuple):
    """What a step runs on.

    Attributes:
        compute: Float. Seconds of forward and backward pass and update on one rank.
        latency: Float. Seconds of a message.
        bandwidth: Float. Bytes per second of a node's link.
        memory: Float. Bytes per second that a rank reads and writes in memory.
        overlap: Float. The part of an exchange that can go on beside the backward pass, 0 to 1.
        spread: Float. Standard deviation of a rank's compute time, in parts of it.
        ranks_per_node: Int.
        servers: Int. How many ranks only serve, for exchanges that have such.
    """

    compute: float
    latency: float
    bandwidth: float
    memory: float
    overlap: float = 0.0
    spread: float = 0.0
    ranks_per_node: int = 1
    servers: int = 0


class Step(NamedTuple):
    """A planned step. Seconds, and the ratios that they make."""

    ranks: int
    exchange: str
    seconds: float
    exchange_seconds: float
    hidden: float
    waiting: float
    speedup: float
    efficiency: float


def exchange_seconds(path: Path, machine: Machine) -> float:
    """Return how long an exchange takes."""
    return path.steps * machine.latency + path.bytes / machine.bandwidth + path.memory / machine.memory


def slowest(ranks: int) -> float:
    """Return the expected largest of so many normal numbers, in standard deviations (Blom, 1958).

    Example:

    >>> [round(slowest(ranks), 2) for ranks in (1, 2, 1024)]
    [0.0, 0.59, 3.23]
    """
    return statistics.NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def plan(
    exchanges: dict[str, Exchange],
    ranks: list[int],
    nbytes: int,
    machine: Machine,
    seconds_of: Measured | None = None,
) -> list[Step]:
    """Return the planned steps, by ranks and exchange; an exchange that cannot be used is left out.

    Args:
        exchanges: Dict from names to exchanges.
        ranks: Numbers of workers.
        nbytes: Int. Size of the gradients.
        machine: The `Machine`.
        seconds_of: Callable. Takes a name, a number of ranks and of bytes; returns what was measured, or `None` to work
            it out. Defaults to `None`.
    """
    steps = []
    for size in ranks:
        if size == 1:
            steps.append(Step(1, ALONE, machine.compute, 0.0, 0.0, 0.0, 1.0, 1.0))
            continue
        for name, exchange in exchanges.items():
            taken = _seconds(name, exchange, size, nbytes, machine, seconds_of)
            if taken is None:
                continue
            hidden = min(machine.overlap * taken, 2 / 3 * machine.compute)
            waiting = machine.compute * machine.spread * slowest(size) * exchange.is_synchronous
            step = machine.compute + waiting + taken - hidden
            efficiency = machine.compute / step
            steps.append(Step(size, name, step, taken, hidden, waiting, efficiency * size, efficiency))
    return steps


def crossovers(steps: list[Step]) -> list[tuple[int, str]]:
    """Return from which number of ranks on another exchange is the fastest: the first, then each change."""
    found: list[tuple[int, str]] = []
    for size in sorted({step.ranks for step in steps if step.ranks > 1}):
        best = fastest(steps, size).exchange
        if not found or found[-1][1] != best:
            found.append((size, best))
    return found


def fastest(steps: list[Step], ranks: int) -> Step:
    """Return the fastest step of so many ranks; of some that are equal the last by name, which is the plainest."""
    own = sorted((step for step in steps if step.ranks == ranks), key=lambda step: step.exchange, reverse=True)
    return min(own, key=lambda step: round(step.seconds, 9))


def crossover_bytes(candidate: Exchange, other: Exchange, size: int, machine: Machine) -> int | None:
    """Return the size of a vector from which on `candidate` is faster than `other`, or `None` if it never is.

    Times are lines over the size, so there is one such point at most.
    """
    most = size * 10**6
    taken = [_seconds("", exchange, size, at, machine, None) for exchange in (candidate, other) for at in (0, most)]
    known = [seconds for seconds in taken if seconds is not None]
    if len(known) < len(taken):
        return None
    start, end, other_start, other_end = known
    slope, other_slope = (end - start) / most, (other_end - other_start) / most
    if slope >= other_slope or start <= other_start:
        return None
    return round((start - other_start) / (other_slope - slope))


def _seconds(
    name: str, exchange: Exchange, size: int, nbytes: int, machine: Machine, seconds_of: Measured | None
) -> float | None:
    if seconds_of is not None and (measured := seconds_of(name, size, nbytes)) is not None:
        return measured
    path = exchange.critical_path(size, nbytes, min(machine.ranks_per_node, size), machine.servers)
    return None if path is None else exchange_seconds(path, machine)
