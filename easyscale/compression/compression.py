"""The base class of gradient compressions."""

import abc
import inspect
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from easyscale.communicator import Communicator

__all__ = ["Compression", "Span", "StepOfForm", "SupportsReduce"]


class Span(NamedTuple):
    """The position of a gradient in a vector.

    Attributes:
        number: Int. The number of its variable: the same on all ranks, and in each step.
        start: Int. Its first element.
        stop: Int. The element after its last.
        shape: Tuple of ints. The shape of the gradient.

    Example:

    >>> Span(number=3, start=10, stop=22, shape=(4, 3))
    Span(number=3, start=10, stop=22, shape=(4, 3))
    """

    number: int
    start: int
    stop: int
    shape: tuple[int, ...]


class StepOfForm(NamedTuple):
    """The context of a compression: the step in which a vector travels.

    Attributes:
        number: Int. The number of steps before this one: the same on all ranks.
        spans: `Span` of each gradient in the vector. Elements between them are zero.
        factors: Dict. State that is kept from step to step for a variable, by its number: the same on all ranks.

    Example:

    >>> StepOfForm(number=0, spans=[Span(0, 0, 12, (4, 3))], factors={}).spans[0].shape
    (4, 3)
    """

    number: int
    spans: Sequence[Span]
    factors: MutableMapping[int, np.ndarray]


class SupportsReduce(Protocol):
    """The methods of an `Exchange` that a compression uses."""

    def over(self, wrap: Callable[[Communicator], Communicator]) -> "SupportsReduce": ...

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> np.ndarray: ...

    def reduce(self, buffer: np.ndarray) -> None: ...

    def gather(self, buffer: np.ndarray) -> None: ...

    def allreduce(self, buffer: np.ndarray) -> None: ...


class Compression(abc.ABC):
    """A compressed form in which float32 vectors of gradients travel.

    Most compressions are a `Packing`: each message is packed. Others reduce a whole vector to fewer numbers, which the
    ranks sum as they are, and override `sum`. Constructor arguments are attributes of the same names.

    Numbers that are not finite stay so, whatever the bits of a NaN: they show that a step has failed.

    Attributes:
        name: String. The name by which users select it, as in `Distribute(compression="int8")`.
        keeps_error: Bool. Whether what a step leaves out of a gradient is added to the next one, as with
            `ErrorFeedback`. Otherwise it is lost.

    Example:

    >>> isinstance(easyscale.compression.get("int8"), Compression)
    True
    """

    name: str
    keeps_error: ClassVar[bool] = False

    @property
    def plain(self) -> "Compression":
        """The compression itself, without `ErrorFeedback` around it."""
        return self

    def why_not(self, exchange: Any) -> str | None:
        """Return the reason why this compression does not work with an `Exchange`, or `None` if it does."""
        return None

    def shortens(self, shape: tuple[int, ...]) -> bool:
        """Return whether this compression makes a gradient of this shape smaller."""
        return True

    @abc.abstractmethod
    def sum(
        self,
        exchange: SupportsReduce,
        vector: np.ndarray,
        step: StepOfForm,
        left_out: np.ndarray | None = None,
        gathers: bool = True,
    ) -> None:
        """Overwrite `vector` with its sum over ranks. Collective: all ranks must call this, and get the same bits.

        Args:
            exchange: The connected `Exchange`.
            vector: Vector of float32.
            step: The `StepOfForm`.
            left_out: Vector of zeros, of the same length. The part of this rank's input that is not in the sum is added
                to it: the sum, plus what is left out on all ranks, is the exact sum. Defaults to `None`: it is lost.
            gathers: Bool. Whether the whole sum is needed on each rank, or only the part that the rank owns. Defaults
                to `True`.
        """

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments that create an equal compression."""
        names = inspect.signature(type(self)).parameters if type(self).__init__ is not object.__init__ else ()
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"
