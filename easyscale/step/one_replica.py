"""The replica of a model in this process: the base class of all backends."""

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
    """The replica of a model in this process, one of many: its construction and its step.

    Args:
        exchange: The connected `Exchange` between processes.
        step: `CurrentStep`.
        backend: The `Backend`.
        asked: String. The name of the requested exchange. Defaults to `None`: none was requested.

    Attributes:
        has_copies: Bool. Whether a model's variables have copies on several devices.
    """

    has_copies = False

    def __init__(self, exchange: Exchange, step: CurrentStep, backend: Backend, asked: str | None = None):
        self.communicator: Communicator = exchange.communicator
        self._step, self._backend = step, backend

    @abc.abstractmethod
    def batch(self, shared: Shared) -> WholeBatch:
        """Return the `WholeBatch` of all workers."""

    @abc.abstractmethod
    def check_model(self, model: Model) -> None:
        """Raise `ValueError` if the model cannot be trained by this replication."""

    @abc.abstractmethod
    def rehearse(self, step: Callable[[Any], Any], iterator: Any, variables: Sequence[Variable]) -> None:
        """Trace `step(next(iterator))`, or run it without the other workers and then restore `variables`."""

    @staticmethod
    def between_processes(exchange: ExchangeArgument) -> ExchangeArgument:
        """Return the exchange between processes for a user's `exchange` argument."""
        return exchange

    @staticmethod
    def apart(function: Callable[[], T]) -> T:
        """Return `function()`. Variables that it creates are on a single device."""
        return function()

    @staticmethod  # noqa: B027
    def make_local(optimizer: Any) -> None:
        """Make an optimizer single-device, even if the variables that it trains have copies on several."""

    @staticmethod
    def scope() -> contextlib.AbstractContextManager:
        """Return the context in which a model is built."""
        return contextlib.nullcontext()

    stock_scope = scope  # for a model trained without EasyScale, for comparison

    def run(self, step: Callable[[Any], T], data: Any, samples: Tensor, model: Model) -> T:
        """Return `step(data)`, a step of `model` on a batch of `samples`."""
        return step(data)

    def weight_alone(self, weight: Any) -> Any:
        """Return the weight of this replica in a step outside of `fit()`, given that of its process.

        There, each replica of a process has the whole batch, so only the first one counts.
        """
        return weight

    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        """Call `apply(context, gradients, variables)` once for all replicas of this process."""
        apply(self._step.context, list(gradients), list(variables))

    def on_one_device(self, apply: ApplyInStep) -> ApplyInStep:
        """Return a function that calls `apply` for all replicas, outside of their steps."""
        return apply

    def copies_of(self, variable: Variable) -> list[tuple[int, Variable]]:
        """Return a variable's copies in this process, each with a number that is unique to its replica."""
        return [(self.communicator.membership.initial_ranks[self.communicator.rank], variable)]

    def start_equal(self, variables: Sequence[Variable], root: int = 0) -> None:
        """Overwrite all workers' `variables` with those of worker `root`, by default the chief.

        Raises:
            ValueError: If a variable has no value yet, because the step being traced creates it.
            DesyncError: If the workers' variables differ in number, shape or dtype.
        """
        if everyone_of(self.communicator).size > 1:
            equality.start_equal(everyone_of(self.communicator), self._backend, variables, root)

    def start_in_step(self, variables: Sequence[Variable], state: Sequence[Variable]) -> None:
        """Set variables, and an optimizer's state, to the chief's in the first step of a custom loop."""
        self.start_equal([*variables, *state])

    def check_equal(self, variables: Sequence[Variable], step: int) -> np.ndarray:
        """Return the fingerprint of `variables`, or raise `DesyncError` on all workers if they differ."""
        return equality.check_equal(everyone_of(self.communicator), self._backend, variables, step)
