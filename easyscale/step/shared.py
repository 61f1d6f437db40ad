"""State shared by all optimizers of a process on one communicator."""

import weakref
from collections.abc import Callable, Sequence

import numpy as np

from easyscale.backend.base import Backend
from easyscale.communicator import Communicator
from easyscale.errors import DesyncError
from easyscale.step.agreement import Agreed, Agreement, Purpose
from easyscale.step.background import Background
from easyscale.step.python_calls import PythonCalls
from easyscale.timeline import Part, Timeline

__all__ = ["Shared"]


class Shared:
    """State shared by all optimizers on one communicator. Use `Shared.of(communicator, backend)`.

    Attributes:
        backend: The `Backend`.
        agreement: The `Agreement`. It counts the exchanges of all optimizers together.
        together: Bool. Whether all workers are in the same `fit()` or `evaluate()`. Rows are exchanged only then.
        may_be_whole: Bool. Whether each worker may have all data of the current `evaluate()`.
        same_batch: Bool. Whether all workers had the same data in the first exchange after this was set to `None`.
        call: The `PythonCalls` by which steps call Python, one call at a time.
        background: The `Background` that communicates while the graph computes.
    """

    _of: dict[Communicator, "Shared"] = {}

    def __init__(self, communicator: Communicator, backend: Backend):
        self._communicator, self.backend = communicator, backend
        self.agreement = Agreement(communicator)
        self.together = self.may_be_whole = False
        self.same_batch: bool | None = None
        self.call = PythonCalls(backend)
        self.background = Background()
        self._states: list[weakref.WeakMethod[Callable[[], list[np.ndarray]]]] = []
        self._numbers = 0

    @classmethod
    def of(cls, communicator: Communicator, backend: Backend) -> "Shared":
        """Return the instance for `communicator`, created on first use."""
        if communicator not in cls._of:
            cls._of[communicator] = cls(communicator, backend)
        return cls._of[communicator]

    @property
    def timeline(self) -> Timeline:
        """The `Timeline` in which this rank records the parts of its steps."""
        return self._communicator.timeline

    def new_number(self) -> int:
        """Return 0 the first time, then 1, ..."""
        self._numbers += 1
        return self._numbers - 1

    def on_state(self, collect: Callable[[], list[np.ndarray]]) -> Callable[[], list[np.ndarray]]:
        """Return a function that calls `collect` on all workers; see `Gradients.on_state`."""
        self._states.append(weakref.WeakMethod(collect))
        number = len(self._states) - 1

        def collect_on_all() -> list[np.ndarray]:
            self.meet(Purpose.STATE, number)
            return self._collect_state(number)

        return collect_on_all

    def _collect_state(self, number: int) -> list[np.ndarray]:
        """Collect the state with this number, together with all other ranks; return it.

        Raises:
            DesyncError: If the optimizer no longer exists on this rank.
        """
        collect = self._states[number]()
        if collect is None:
            raise DesyncError(
                "all ranks must keep an optimizer that one of them saves. Received: one that is gone on rank "
                f"{self._communicator.rank}. Run one script on all ranks"
            )
        return collect()

    def meet(
        self,
        purpose: Purpose,
        detail: int = 0,
        weight: float = 0.0,
        batch: float = 0.0,
        descriptions: Sequence[str] = (),
    ) -> Agreed:
        """Announce this worker's next collective call; return the agreed one. See `Agreement.meet`.

        States that other workers request are collected first.
        """
        while True:
            agreed = self.agreement.meet(purpose, detail, weight, batch, descriptions)
            if agreed.purpose != Purpose.STATE or purpose == Purpose.STATE:
                return agreed
            self._collect_state(agreed.detail)

    def gather_rows(self, row: np.ndarray) -> np.ndarray:
        """Return the rows of all workers, inside a step; only this worker's unless all are `together`."""
        if not self.together:
            return row[None]
        before = self.timeline.to(Part.WAIT)
        self.meet(Purpose.ROWS, row.size)
        self.timeline.to(Part.EXCHANGE)
        rows = self._communicator.all_gather_rows(row)
        self.timeline.to(before)
        return rows
