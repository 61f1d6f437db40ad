"""Goes on with the workers that are left when one has failed, in the middle of a `fit()`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from easyscale.communicator import Communicator
from easyscale.errors import LostError, PeerError
from easyscale.replication.replication import Replication
from easyscale.training.fit_progress import FitProgress
from easyscale.training.training_state import TrainingState

__all__ = ["Recovery", "shrink"]


class _Left(NamedTuple):
    """Ranks that have failed: the numbers that they had, and those that they had at the start; and what else changed.

    See `Change`.
    """

    lost: list[int]
    initial_ranks: list[int]
    joined: list[int] = []
    again: bool = False


def shrink(communicator: Communicator, again: bool = False) -> _Left:
    """Leave the ranks that have failed out of a communicator. All ranks that are left must call this alike.

    Args:
        communicator: The `Communicator`.
        again: Bool. Whether this rank could not go on with what all ranks did. Defaults to `False`.

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
    """What the workers of an elastic job do together about one that has failed.

    Whoever waits for it gets an error, and interrupts all others. They leave it out, take the weights and the
    optimizer's state of the worker that has come furthest, and go on. So what is lost is at most the step under way.

    Args:
        replication: The `Replication`, all workers as one of them sees them.
        state: The `TrainingState`.
        progress: The `FitProgress`.
        renew: Function. Takes the number of exchanges of gradients that count as done, and has what moves them know the
            workers.
        settled: Function. Takes the number of steps so far, when all have agreed on it.
        report: Function. Takes the first numbers of the workers that have failed.
        welcome: Function. Called by all workers together when some have joined. Takes the first worker that has not,
            and whether this one has.
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
        """Go on without the workers that have failed, if that is what `error` says; return whether it does.

        Args:
            error: What was raised.
            steps: Int. The steps that count as done then. Defaults to `None`: those that are done.
        """
        if not isinstance(self._replication.steps.failure or error, LostError):
            return False
        if steps is not None:
            self._progress.settle(steps)
        self._replication.steps.interrupt()
        self.shrink(again=True)
        return True

    def shrink(self, again: bool = False) -> bool:
        """Leave out the workers that have failed since this was last called; return whether anything has changed.

        All workers must call this alike; for those that `interrupt` has reached it is what follows.

        Args:
            again: Bool. Whether this worker could not go on with what all did. Defaults to `False`.
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
        """Make all workers' state that of the one that has come furthest. They do this together.

        Raises:
            PeerError: If none is left that has trained.
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
        """Return `act()`, called again if a worker has failed. Another worker may be one `act` further by then."""
        while True:
            try:
                return act()
            except Exception as error:
                if not self.survives(error):
                    raise

    def repeat(self, act: Callable[[], Any], restore: Callable[[], None] = lambda: None) -> Any:
        """Return `act()`, which all workers do together, when all of them have done it with the same workers.

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
