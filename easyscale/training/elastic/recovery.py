"""Recovery in the middle of a `fit()`: training goes on with the remaining workers when one has failed."""

from collections.abc import Callable
from typing import Any, NamedTuple

from easyscale.communicator import Communicator
from easyscale.errors import LostError, PeerError
from easyscale.replication.replication import Replication
from easyscale.training.fit_progress import FitProgress
from easyscale.training.training_state import TrainingState

__all__ = ["Recovery", "shrink"]


class _Left(NamedTuple):
    """Failed ranks, by their last and by their initial numbers, and what else has changed.

    See `Change`.
    """

    lost: list[int]
    initial_ranks: list[int]
    joined: list[int] = []
    again: bool = False


def shrink(communicator: Communicator, again: bool = False) -> _Left:
    """Leave failed ranks out of a communicator. All remaining ranks must call this.

    Args:
        communicator: The `Communicator`.
        again: Bool. Whether this rank could not finish what all ranks were doing. Defaults to `False`.

    Raises:
        PeerError: If the others cannot go on without them.
    """
    membership, workers, has_servers = communicator.membership, communicator.workers, communicator.servers > 0
    initial_ranks = membership.initial_ranks
    lost, joined, again = membership.regroup(again)
    needed = [initial_ranks[rank] for rank in lost if rank >= workers or (rank == 0 and has_servers)]
    if needed:
        raise PeerError(
            f"an elastic job with servers needs them and its chief. Received: rank {needed[0]} has failed. "
            "Start it with `--restarts`, and `Distribute(checkpoint=...)`"
        )
    if communicator.workers < membership.least_workers:
        raise PeerError(
            f"an elastic job needs as many workers as --min-workers says, {membership.least_workers}. Received: "
            f"{communicator.workers} are left. Start it with `--restarts`, and `Distribute(checkpoint=...)`"
        )
    return _Left(lost, [initial_ranks[rank] for rank in lost], joined, again)


class Recovery:
    """Recovers the workers of an elastic job after one of them has failed.

    A worker that waits for the failed one gets an error, and interrupts all others. They leave it out, take the weights
    and the optimizer's state of the worker that is furthest ahead, and go on. So at most the current step is lost.

    Args:
        replication: The `Replication`, a worker's view of all workers.
        state: The `TrainingState`.
        progress: The `FitProgress`.
        renew: Function. Takes the number of gradient exchanges that count as done, and adapts the exchange to the new
            workers.
        settled: Function. Takes the number of steps so far, after all have agreed on it.
        report: Function. Takes the initial ranks of the workers that have failed.
        welcome: Function. Called by all workers together when some have joined. Takes the first worker that is not
            new, and whether this one is.
    """

    def __init__(
        self,
        replication: Replication,
        state: TrainingState,
        progress: FitProgress,
        renew: Callable[[int], None],
        settled: Callable[[int], None],
        report: Callable[[list[int]], None],
        welcome: Callable[[int, bool], None],
    ):
        self._replication, self._state, self._progress = replication, state, progress
        self._renew, self._settled, self._report, self._welcome = renew, settled, report, welcome

    def survives(self, error: Exception, steps: int | None = None) -> bool:
        """Go on without the failed workers if `error` reports a failure; return whether it does.

        Args:
            error: The exception.
            steps: Int. The number of steps that count as done then. Defaults to `None`: those that are done.
        """
        if not isinstance(self._replication.steps.failure or error, LostError):
            return False
        if steps is not None:
            self._progress.settle(steps)
        self._replication.steps.interrupt()
        self.shrink(again=True)
        return True

    def shrink(self, again: bool = False) -> bool:
        """Leave out the workers that have failed since the last call; return whether anything has changed.

        All workers must call this. Those that `interrupt` has reached call it next.

        Args:
            again: Bool. Whether this worker could not finish what all were doing. Defaults to `False`.
        """
        has_changed, initial_ranks = False, []
        while True:
            change = shrink(self._replication.communicator, again)
            if not (change.lost or change.joined or change.again):
                return has_changed
            has_changed, again = True, False
            initial_ranks += change.initial_ranks
            try:
                self.agree()
            except LostError:
                self._replication.steps.interrupt()
                again = True
            else:
                if initial_ranks:
                    self._report(initial_ranks)
                initial_ranks = []

    def agree(self) -> None:
        """Give all workers the state of the one that is furthest ahead. All workers must call this.

        Raises:
            PeerError: If no worker that has trained is left.
        """
        progress = self._progress
        has_joined = progress.exchanges < 0
        all_ranks = self._replication.communicator.all_gather_object(
            [self._replication.steps.exchanges, progress.exchanges, progress.steps]
        )
        begun, done, steps = ([row[index] for row in all_ranks] for index in range(3))
        furthest = done.index(max(done))
        if done[furthest] < 0:
            raise PeerError(
                "workers that replace others need one that has trained. Received: the last one has failed before they "
                "had joined it. Start the job with `--restarts`, and `Distribute(checkpoint=...)`"
            )
        self._renew(max(count for count, so_far in zip(begun, done, strict=True) if so_far >= 0))
        self._replication.replicas.start_equal(self._state.variables, root=furthest)
        if min(done) < 0:
            self._welcome(next(rank for rank, so_far in enumerate(done) if so_far >= 0), has_joined)
        progress.note_exchanges()
        self._settled(max(steps))

    def retry(self, act: Callable[[], Any]) -> Any:
        """Return `act()`, called again if a worker has failed. Another worker may be one `act` ahead by then."""
        while True:
            try:
                return act()
            except Exception as error:
                if not self.survives(error):
                    raise

    def repeat(self, act: Callable[[], Any], restore: Callable[[], None] = lambda: None) -> Any:
        """Return `act()`, a collective operation, when all workers have completed it with the same workers.

        Args:
            act: Function. May be called several times.
            restore: Function. Called before `act` is called again.
        """
        while True:
            try:
                result = act()
            except Exception as error:
                if not self.survives(error):
                    raise
            else:
                if not self.shrink():
                    return result
            restore()
