"""Ranks that end before the others.

A rank that ends in the middle of training must not be waited for, and must not wait for the others. `MPI_Finalize`
would wait, and the rank's exit code would never be seen. So a rank that ends notifies all others, and then waits, as
MPI would, until every rank has ended. But if one of them replies that it still needs this rank, it ends immediately,
with its own exit code and without `MPI_Finalize`, which ends the job.

A rank that fails cannot notify the others. In an elastic job MPI reports it; any other job has ended by then.
"""

import time
from collections.abc import Callable, Iterable

from easyscale.elastic.mail import Mail

__all__ = ["Departures"]

_LEFT_TAG, _NEEDED_TAG = 2, 3  # data, `Members` and `Spares` use other tags
_NAP_SECONDS, _LONG_NAP_SECONDS = 0.0005, 0.02


class Departures:
    """The ranks that have left, and notices to those that are still needed.

    Args:
        mail: `Mail` between all world ranks.
    """

    def __init__(self, mail: Mail):
        self._mail = mail
        self._left: set[int] = set()

    @property
    def left(self) -> set[int]:
        """The world ranks that have left, as far as this one knows."""
        while (word := self._mail.hear(_LEFT_TAG)) is not None:
            self._left.add(word[0])
        return self._left

    def need(self, world_rank: int) -> None:
        """Notify a world rank that has left that it is still needed."""
        self._mail.send(world_rank, _NEEDED_TAG)

    def leave(self, world_ranks: Iterable[int], meanwhile: Callable[[], None]) -> bool:
        """Notify these world ranks that this one ends; return when all have ended (true) or one needs it (false).

        Args:
            world_ranks: The world ranks of the members.
            meanwhile: Function without arguments, called repeatedly while waiting.
        """
        others = {*world_ranks} - {self._mail.own}
        for world_rank in others | self.left:  # also those that have left and still listen
            self._mail.send(world_rank, _LEFT_TAG)
        self._left.add(self._mail.own)
        started = time.monotonic()
        while not others <= self.left | self._mail.failed:
            if self._mail.hear(_NEEDED_TAG) is not None:
                return False
            meanwhile()
            time.sleep(min(max(_NAP_SECONDS, (time.monotonic() - started) / 20), _LONG_NAP_SECONDS))
        return True

    def is_missed(self, world_ranks: Iterable[int]) -> bool:
        """Return whether one of these world ranks has failed without having left."""
        return not self._mail.failed.isdisjoint({*world_ranks} - self.left)
