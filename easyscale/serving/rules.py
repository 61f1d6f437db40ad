"""The rules by which a server applies gradients and lets workers go on. They deal with step counts, not vectors."""

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING

from easyscale.serving.staleness import Staleness

if TYPE_CHECKING:
    from easyscale.exchange import ParameterServer

__all__ = ["Asynchronous", "BackupWorkers", "Bounded", "Rule", "rule_of"]


class Rule(abc.ABC):
    """The workers' progress in an epoch, and the decisions of a server that depend on it.

    For each gradient that arrives, a rule decides which gradients make a step now; for each worker that waits, whether
    it may have the weights.

    Args:
        workers: Int. The number of workers.

    Attributes:
        steps: List. The number of each worker's steps in this epoch.
        active: Set of the workers that have data left in this epoch.
        staleness: `Staleness` of this epoch.
    """

    def __init__(self, workers: int):
        self._workers = workers
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Start an epoch: all workers have the same weights and have made no steps."""
        self.staleness = Staleness()
        self.steps = [0] * self._workers
        self.active = set(range(self._workers))
        self._seen = [list(self.steps) for _ in range(self._workers)]  # all workers' steps, at each one's last pull
        self._reading = set(self.active)  # the workers that compute a gradient from the weights they have pulled

    def shrink(self, count: int) -> None:
        """Remove `count` workers, from the next epoch on."""
        self._workers -= count

    def push(self, worker: int, steps: int) -> list[int]:
        """Record a gradient that a worker sends after `steps` steps. Return whose gradients make a step now."""
        self.staleness.pushed += 1
        late = max((now - then for now, then in self._others(worker)), default=0)
        self.steps[worker] = steps
        return self._push(worker, late)

    def move(self, worker: int, steps: int) -> None:
        """Record that a worker has made `steps` steps, without a gradient."""
        self.steps[worker] = steps

    def ask(self, worker: int) -> None:
        """Record that a worker asks for weights: it no longer computes with those that it has."""
        self._reading.discard(worker)

    def end(self, worker: int) -> list[int]:
        """Record that a worker has no more data in this epoch. Return whose gradients make a step now."""
        self.active.discard(worker)
        self._reading.discard(worker)
        return []

    def pull(self, worker: int) -> None:
        """Record that a worker receives the weights."""
        self._seen[worker] = list(self.steps)
        self._reading.add(worker)

    def may_pull(self, worker: int) -> bool:
        """Return whether a worker may receive the weights and go on."""
        return True

    @property
    def together(self) -> int:
        """The number of steps that all workers have made together in this epoch, or 0 if each makes its own."""
        return 0

    def _others(self, worker: int) -> Iterable[tuple[int, int]]:
        """Return, for every other worker, its steps now and when `worker` last pulled."""
        pairs = list(zip(self.steps, self._seen[worker], strict=True))
        return pairs[:worker] + pairs[worker + 1 :]

    @abc.abstractmethod
    def _push(self, worker: int, late: int) -> list[int]:
        """Finish `push` after the steps have been counted; `late` is the staleness of the gradient."""


class Asynchronous(Rule):
    """Asynchronous updates: each gradient is a step, and no worker waits.

    Reference: Dean et al., "Large scale distributed deep networks", 2012, section 4.1 (Downpour SGD).
    """

    def _push(self, worker: int, late: int) -> list[int]:
        self.staleness.apply(late)
        return [worker]


class Bounded(Rule):
    """Bounded staleness: each gradient is a step; a worker waits while it is `bound` steps ahead of the slowest.

    It also waits while its next step would be more than the `bound`-th since another worker pulled the weights that the
    other is computing with. So no gradient is staler than `bound`. A worker that computes never waits, so one always
    goes on.

    Args:
        workers: Int. The number of workers.
        bound: Int, 1 or more. In steps.
        stride: Int. The number of steps that a worker makes between two pulls. Defaults to `1`.

    Reference: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", 2013.
    """

    def __init__(self, workers: int, bound: int, stride: int = 1):
        super().__init__(workers)
        self._bound, self._stride = bound, stride

    def may_pull(self, worker: int) -> bool:
        ahead = self.steps[worker] + self._stride
        slowest = min((self.steps[other] for other in self.active), default=0)
        readers = self._reading - {worker}
        return ahead - slowest <= self._bound and all(
            ahead - self._seen[reader][worker] <= self._bound for reader in readers
        )

    def _push(self, worker: int, late: int) -> list[int]:
        self.staleness.apply(late)
        return [worker]


class BackupWorkers(Rule):
    """Synchronous steps with backup workers: each uses the first gradients that arrive; later ones are dropped.

    Args:
        workers: Int. The number of workers.
        backups: Int. The number of workers whose gradients a step can do without.

    Reference: Chen et al., "Revisiting distributed synchronous SGD", 2016.
    """

    def __init__(self, workers: int, backups: int):
        self._backups = backups
        super().__init__(workers)

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self._together = 0
        self._came: list[int] = []  # the workers whose gradients have arrived for the next step

    @property
    def together(self) -> int:
        return self._together

    def may_pull(self, worker: int) -> bool:
        return worker not in self._came

    def end(self, worker: int) -> list[int]:
        super().end(worker)
        return self._step_if_enough()

    def _push(self, worker: int, late: int) -> list[int]:
        if self.steps[worker] <= self._together:
            self.staleness.dropped += 1
            return []
        self._came.append(worker)
        return self._step_if_enough()

    def _step_if_enough(self) -> list[int]:
        if not self._came or len(self._came) < len(self.active) - self._backups:
            return []
        taken, self._came = sorted(self._came), []
        self._together += 1
        for _ in taken:
            self.staleness.apply(0)
        return taken


def rule_of(exchange: "ParameterServer", workers: int) -> Rule:
    """Return a new rule for a `ParameterServer` exchange that is not synchronous."""
    if exchange.backup_workers:
        return BackupWorkers(workers, exchange.backup_workers)
    if exchange.mode == "bounded":
        return Bounded(workers, exchange.staleness, max(exchange.push_every, exchange.pull_every))
    return Asynchronous(workers)
