"""The alpha-beta-gamma model of a training step: latency, bandwidth, memory; with overlap and stragglers.

    exchange = alpha * steps + beta * bytes + gamma * memory          from each exchange's `critical_path`
    hidden   = min(overlap * exchange, 2 / 3 * compute)               behind the backward pass, two thirds of the work
    slowest  = compute * (1 + spread * z(P))                          z(P): the expected maximum of P standard normals
    step     = slowest + exchange - hidden

With pipelines of S stages and M micro-batches, S ranks are one worker (`Pipelines`):

    compute  = compute / S * (M + S - 1) / M + 2 * (S - 1) * crossing of a micro-batch
    exchange : 1 / S of the weights, between as many ranks as there are pipelines

A group of G ranks (`Groups`) is one worker or has one stage. It splits layers with a share F of the weights and the
work, in L pairs or attentions with a bytes of input and b bytes of output:

    compute  = compute * (1 - F + F / G) + 4 * (G - 1) * L * alpha + 2 * (G - 1) / G * (a + b) * beta
    exchange : 1 - F + F / G of the weights, between as many ranks as there are groups

Reference: Hockney, "The communication challenge for MPP", 1994, for alpha and beta; Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", 2005, for all three; Huang et al., "GPipe", 2019, for
pipelines; Shoeybi et al., "Megatron-LM", 2019, for groups.
"""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from easyscale.exchange.exchange import Exchange, Path

__all__ = [
    "ALONE",
    "ONE_GROUP",
    "ONE_PIPELINE",
    "Groups",
    "Machine",
    "Pipelines",
    "Step",
    "crossover_bytes",
    "crossovers",
    "exchange_seconds",
    "fastest",
    "hidden_of",
    "plan",
    "slowest",
]

ALONE = "one rank"
ONE_PIPELINE = "one pipeline"
ONE_GROUP = "one group"
Measured = Callable[[str, int, int], float | None]  # takes the name of an exchange, and the numbers of ranks and bytes


class Machine(NamedTuple):
    """The hardware that a step runs on.

    Attributes:
        compute: Float. Seconds of forward and backward pass and update on one rank.
        latency: Float. Seconds of a message.
        bandwidth: Float. Bytes per second of a node's link.
        memory: Float. Bytes per second that a rank reads and writes in memory.
        overlap: Float. Fraction of an exchange that can overlap with the backward pass, 0 to 1.
        spread: Float. Standard deviation of a rank's compute time, as a fraction of it.
        ranks_per_node: Int.
        servers: Int. Number of ranks that only serve, for exchanges with servers.
    """

    compute: float
    latency: float
    bandwidth: float
    memory: float
    overlap: float = 0.0
    spread: float = 0.0
    ranks_per_node: int = 1
    servers: int = 0


class Pipelines(NamedTuple):
    """A model cut into pipeline stages, which compute equally long.

    Attributes:
        stages: Int.
        microbatches: Int.
        activations: Float. Bytes of a worker's batch that cross from one stage to the next. Defaults to `0`.
    """

    stages: int
    microbatches: int
    activations: float = 0.0

    @property
    def bubble(self) -> float:
        """The fraction of a step in which a stage waits.

        Example:

        >>> round(Pipelines(2, 8).bubble, 3)
        0.111
        """
        return (self.stages - 1) / (self.microbatches + self.stages - 1)

    def machine(self, machine: Machine) -> Machine:
        """Return the machine of a whole pipeline, seen as one rank: its ranks on a node share the link."""
        on_node = min(self.stages, machine.ranks_per_node)
        speed = machine.memory if machine.ranks_per_node >= self.stages else machine.bandwidth
        crossing = machine.latency + self.activations / self.microbatches / speed
        compute = machine.compute / self.stages / (1 - self.bubble) + 2 * (self.stages - 1) * crossing
        return machine._replace(
            compute=compute,
            bandwidth=machine.bandwidth / on_node,
            memory=machine.memory / on_node,
            ranks_per_node=max(1, machine.ranks_per_node // self.stages),
        )


class Groups(NamedTuple):
    """Layers split within groups of ranks: columns followed by rows, or attention by heads.

    Attributes:
        ranks: Int. Number of ranks in a group.
        share: Float. Fraction of the weights, and of the work, in split layers: 0 to 1. Defaults to `1`.
        within: Float. Total bytes that enter and leave such pairs, for a worker's batch. Defaults to `0`.
        pairs: Int. The number of pairs, or attentions. Defaults to `1`.
    """

    ranks: int
    share: float = 1.0
    within: float = 0.0
    pairs: int = 1

    @property
    def part(self) -> float:
        """The fraction of the weights, and of the work, on one rank.

        Example:

        >>> Groups(ranks=4, share=0.8).part
        0.4
        """
        return round(1 - self.share + self.share / self.ranks, 12)

    def machine(self, machine: Machine, microbatches: int = 1) -> Machine:
        """Return the machine of a whole group, seen as one rank: its ranks on a node share the link.

        Args:
            machine: The `Machine`.
            microbatches: Int. Number of micro-batches in a batch, each with its own messages. Defaults to `1`.
        """
        on_node = min(self.ranks, machine.ranks_per_node)
        messages = 4 * (self.ranks - 1) * self.pairs * microbatches
        sent = 2 * (self.ranks - 1) / self.ranks * self.within
        return machine._replace(
            compute=machine.compute * self.part + messages * machine.latency + sent / self._speed(machine),
            bandwidth=machine.bandwidth / on_node,
            memory=machine.memory / on_node,
            ranks_per_node=max(1, machine.ranks_per_node // self.ranks),
        )

    def seconds_alike(self, nbytes: float, machine: Machine) -> float:
        """Return the seconds of all-gathering unsplit layers' gradients in a group, so that its ranks have equal bits.

        Args:
            nbytes: Float. Bytes of the gradients of all layers that a rank owns.
            machine: The `Machine`.
        """
        sent = (self.ranks - 1) / self.ranks * nbytes * (1 - self.share)
        return (self.ranks - 1) * machine.latency + sent / self._speed(machine) if sent else 0.0

    def _speed(self, machine: Machine) -> float:
        on_node = min(self.ranks, machine.ranks_per_node)
        return machine.memory if machine.ranks_per_node >= self.ranks else machine.bandwidth / on_node


class Step(NamedTuple):
    """A planned step: times in seconds, and their ratios."""

    ranks: int
    exchange: str
    seconds: float
    exchange_seconds: float
    hidden: float
    waiting: float
    speedup: float
    efficiency: float


def exchange_seconds(path: Path, machine: Machine) -> float:
    """Return the seconds of an exchange."""
    return path.steps * machine.latency + path.bytes / machine.bandwidth + path.memory / machine.memory


def hidden_of(taken: float, machine: Machine) -> float:
    """Return the seconds of an exchange that the backward pass hides."""
    return min(machine.overlap * taken, 2 / 3 * machine.compute)


def slowest(ranks: int) -> float:
    """Return the expected maximum of `ranks` normal numbers, in standard deviations (Blom, 1958).

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
    pipelines: Pipelines | None = None,
    groups: Groups | None = None,
) -> list[Step]:
    """Return the planned steps, by ranks and exchange; an exchange that cannot be used is left out.

    Args:
        exchanges: Dict from names to exchanges.
        ranks: Numbers of ranks that train.
        nbytes: Int. Size of the gradients.
        machine: The `Machine`.
        seconds_of: Callable. Takes an exchange's name and the numbers of ranks and bytes; returns the measured seconds,
            or `None` to use the model. Defaults to `None`.
        pipelines: `Pipelines`. Each pipeline is a worker; `ranks` are multiples of its stages, or 1. Defaults to
            `None`: there are none.
        groups: `Groups`. Each group is a worker, or has one stage of a pipeline. Defaults to `None`: there are none.
    """
    steps, alone = [], machine.compute
    of_worker, own, worker, name_of_one = 1, float(nbytes), machine, ONE_GROUP
    stages = 1 if pipelines is None else pipelines.stages
    if groups is not None:
        microbatches = 1 if pipelines is None else pipelines.microbatches
        of_worker, own, worker = groups.ranks, own * groups.part, groups.machine(worker, microbatches)
    if pipelines is not None:
        of_worker, own, name_of_one = of_worker * stages, own / stages, ONE_PIPELINE
        worker = pipelines.machine(worker)
    for size in ranks:
        if size == 1:
            steps.append(Step(1, ALONE, alone, 0.0, 0.0, 0.0, 1.0, 1.0))
            continue
        workers = size // of_worker
        alike = 0.0 if groups is None else groups.seconds_alike(nbytes / stages / workers, machine)
        if workers == 1 and of_worker > 1:
            step = worker.compute + alike
            steps.append(Step(size, name_of_one, step, alike, 0.0, 0.0, alone / step, alone / step / size))
            continue
        for name, exchange in exchanges.items():
            taken = _seconds(name, exchange, workers, int(own), worker, seconds_of)
            if taken is None:
                continue
            taken += alike
            hidden = hidden_of(taken, worker) if pipelines is None else 0.0
            waiting = worker.compute * worker.spread * slowest(workers) * exchange.is_synchronous
            step = worker.compute + waiting + taken - hidden
            speedup = workers * alone / step
            steps.append(Step(size, name, step, taken, hidden, waiting, speedup, speedup / size))
    return steps


def crossovers(steps: list[Step]) -> list[tuple[int, str]]:
    """Return the numbers of ranks from which another exchange is the fastest: the first, then each change."""
    found: list[tuple[int, str]] = []
    for size in sorted({step.ranks for step in steps if step.ranks > 1}):
        best = fastest(steps, size).exchange
        if not found or found[-1][1] != best:
            found.append((size, best))
    return found


def fastest(steps: list[Step], ranks: int) -> Step:
    """Return the fastest step of `ranks` ranks; among equals the last by name, which is the simplest."""
    own = sorted((step for step in steps if step.ranks == ranks), key=lambda step: step.exchange, reverse=True)
    return min(own, key=lambda step: round(step.seconds, 9))


def crossover_bytes(candidate: Exchange, other: Exchange, size: int, machine: Machine) -> int | None:
    """Return the vector size above which `candidate` becomes faster than `other`, or `None` if there is none.

    Times are linear in the size, so there is at most one such point.
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
