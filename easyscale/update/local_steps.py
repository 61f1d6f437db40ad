"""The base class of updates in which workers step alone between rounds, as users request them."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import keras

from easyscale.errors import is_number
from easyscale.step.gradients import Gradients
from easyscale.update.accumulated import unscaled
from easyscale.update.base import Update

__all__ = ["LocalSteps"]


class LocalSteps(abc.ABC):
    """A parametrized alternative to an update's name. It creates the `Update` of each optimizer.

    Args:
        every: Int. Number of steps before each round.
        start_step: Int. Number of initial steps with an exchange of gradients in each.

    Attributes:
        fragments: Int. Number of parts in which weights take turns, with a round for each. Defaults to `1`: all in one.
        overlap: Int. Number of steps during a round. Defaults to `0`: workers wait for its end.
        mixing: Float. The fraction kept of a worker's own weights at the end of such a round. Defaults to `0.5`.
        in_pairs: Bool. Whether a worker mixes its weights with another's, in place of a round of all workers.
        name: String. The name for users, with default arguments, as in `Distribute(update="local_sgd")`.
        needs: String. The kind of optimizer that it needs.

    Raises:
        ValueError: If an argument is out of its range.
    """

    overlap = 0
    mixing = 0.5
    in_pairs = False
    name: ClassVar[str] = ""
    needs: ClassVar[str] = "an optimizer of which each worker can have one of its own"

    def __init__(self, every: int, start_step: int):
        for argument, value, least in (("every", every, 1), ("start_step", start_step, 0)):
            if not is_number(value, least, whole=True) or isinstance(value, bool):
                raise ValueError(
                    f"`{argument}` must be an integer of {least} or more. Received: {argument}={value!r}. "
                    f"{'Use such as 16' if least else 'Leave it out to step alone from the first step on'}"
                )
        self.every, self.start_step, self.fragments = int(every), int(start_step), 1

    def why_not(self, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> str | None:
        """Return the reason why it cannot be used with an optimizer, or `None` if it can."""
        inner = unscaled(optimizer)
        for part in getattr(inner, "optimizers", [inner]):
            if getattr(part, "gradient_accumulation_steps", None):
                return "it sums gradients up over steps, and a round may lie between them"
            if getattr(part, "use_ema", False):
                return "it keeps moving averages of weights, which differ between rounds"
        if any(getattr(variable, "overwrite_with_gradient", False) for variable in variables):
            return "a weight is overwritten with its gradient"
        return None

    def check_job(self, gradients: Gradients) -> None:
        """Raise `ValueError` if workers cannot step alone in this job."""
        communicator = gradients.communicator
        for is_so, rule, received in (
            (communicator.membership.is_elastic, "an update in rounds needs all of its workers", "an elastic job"),
            (bool(communicator.servers), "workers that step alone need ranks that all train", "a job with servers"),
        ):
            if is_so:
                raise ValueError(f"{rule}. Received: update='{self.name}' and {received}. Use `update='replicated'`")

    @abc.abstractmethod
    def make_outer_optimizer(self) -> keras.optimizers.Optimizer:
        """Return a new optimizer, whose gradient is the mean difference of a round."""

    @abc.abstractmethod
    def __call__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        connect: Callable[[], Gradients],
    ) -> Update:
        """Return the update of one optimizer. See `Update`."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, in serializable form."""
        return {"every": self.every, "start_step": self.start_step}

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((type(self), self.every, self.start_step))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(every={self.every}, start_step={self.start_step})"
