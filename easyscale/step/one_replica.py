"""The replica of a model in a process that has one: what all backends have in common of it."""

import abc
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from easyscale.backend.base import Backend
from easyscale.communicator import Communicator
from easyscale.communicator.data_axis import everyone_of
from easyscale.exchange import Exchange
from easyscale.layout.specs import Variable
from easyscale.step import equality
from easyscale.step.context import (
    ApplyInStep,
    CurrentStep,
    ExchangeArgument,
    Gradient,
    Model,
    Tensor,
)
from easyscale.step.shared import Shared
from easyscale.step.whole_batch import WholeBatch

__all__ = ["OneReplica"]

T = TypeVar("T")


class OneReplica(abc.ABC):
    """The replica of a model in this process, which is one of many: how it is built, and its step.

    Args:
        exchange: The connected `Exchange` between processes.
        step: `CurrentStep`.
        backend: The `Backend`.
        asked: String. The name of the exchange that was asked for. Defaults to `None`: none was.

    Attributes:
        has_copies: Bool. Whether a model's variables have copies on several devices.
    """

    has_copies = False

    def __init__(self, exchange: Exchange, step: CurrentStep, backend: Backend, asked: str | None = None):
        self.communicator: Communicator = exchange.communicator
        self._step, self._backend = step, backend

    @abc.abstractmethod
    def batch(self, shared: Shared) -> WholeBatch:
        """Return the batches of all workers together."""

    @abc.abstractmethod
    def check_model(self, model: Model) -> None:
        """Raise `ValueError` if the model cannot be trained by this replication."""

    @abc.abstractmethod
    def rehearse(self, step: Callable[[Any], Any], iterator: Any, variables: Sequence[Variable]) -> None:
        """Trace `step(next(iterator))`, or run it alone, without an update, and give `variables` their values again."""

    @staticmethod
    def between_processes(exchange: ExchangeArgument) -> ExchangeArgument:
        """Return which exchange processes use if the user has said `exchange`."""
        return exchange

    @staticmethod
    def apart(function: Callable[[], T]) -> T:
        """Return `function()`, which may make variables: they are those of one device."""
        return function()

    @staticmethod  # noqa: B027
    def make_local(optimizer: Any) -> None:
        """Make an optimizer one of a single device, whose variables may have copies on several."""

    @staticmethod
    def scope() -> contextlib.AbstractContextManager:
        """Return the context in which a model is built."""
        return contextlib.nullcontext()

    stock_scope = scope  # of one that is trained without EasyScale, for comparison

    def run(self, step: Callable[[Any], T], data: Any, samples: Tensor, model: Model) -> T:
        """Return `step(data)`, a step of `model`, for a batch of `samples`."""
        return step(data)

    def weight_alone(self, weight: Any) -> Any:
        """Return the weight of this replica in a step outside of a `fit()`, given that of its process.

        All replicas of a process have its whole batch there, so only the first one counts.
        """
        return weight

    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        """Call `apply(context, gradients, variables)`, once for all replicas of this process."""
        apply(self._step.context, list(gradients), list(variables))

    def on_one_device(self, apply: ApplyInStep) -> ApplyInStep:
        """Return a function that does what `apply` does for all replicas, outside of a step of theirs."""
        return apply

    def copies_of(self, variable: Variable) -> list[tuple[int, Variable]]:
        """Return a variable's copies in this process, each with a number that no other replica ever has."""
        return [(self.communicator.membership.initial_ranks[self.communicator.rank], variable)]

    def start_equal(self, variables: Sequence[Variable], root: int = 0) -> None:
        """Overwrite all workers' `variables` with those of worker `root`, by default the chief.

        Raises:
            ValueError: If a variable has no value yet, because it is made by the step that is being traced.
            DesyncError: If the workers' variables differ in number, shape or dtype.
        """
        if everyone_of(self.communicator).size > 1:
            equality.start_equal(everyone_of(self.communicator), self._backend, variables, root)

    def start_in_step(self, variables: Sequence[Variable], state: Sequence[Variable]) -> None:
        """Let variables, and an optimizer's state, be the chief's in the first step of a loop of the user's own."""
        self.start_equal([*variables, *state])

    def check_equal(self, variables: Sequence[Variable], step: int) -> np.ndarray:
        """Return the fingerprint of `variables`, or raise `DesyncError` on all workers if they differ."""
        return equality.check_equal(everyone_of(self.communicator), self._backend, variables, step)
