"""The base class of forms in which gradients travel."""

import abc
import inspect
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from easyscale.communicator import Communicator

__all__ = ["Compression", "Span", "StepOfForm", "Way"]


class Span(NamedTuple):
    """Where in a vector a gradient stands.

    Attributes:
        number: Int. That of its variable: the same on all ranks, and in each step.
        start: Int. Its first element.
        stop: Int. The element behind its last.
        shape: Tuple of ints. The gradient's.

    Example:

    >>> Span(number=3, start=10, stop=22, shape=(4, 3))
    Span(number=3, start=10, stop=22, shape=(4, 3))
    """

    number: int
    start: int
    stop: int
    shape: tuple[int, ...]


class StepOfForm(NamedTuple):
    """What a form knows of the step in which a vector travels.

    Attributes:
        number: Int. How many steps there were: the same on all ranks.
        spans: `Span` of each gradient in the vector. What is between them is zero.
        factors: Dict. What the form keeps from step to step for a variable, by its number: the same on all ranks.

    Example:

    >>> StepOfForm(number=0, spans=[Span(0, 0, 12, (4, 3))], factors={}).spans[0].shape
    (4, 3)
    """

    number: int
    spans: Sequence[Span]
    factors: MutableMapping[int, np.ndarray]


class Way(Protocol):
    """What vectors travel along: an `Exchange`."""

    def over(self, wrap: Callable[[Communicator], Communicator]) -> "Way": ...

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> np.ndarray: ...

    def reduce(self, buffer: np.ndarray) -> None: ...

    def gather(self, buffer: np.ndarray) -> None: ...

    def allreduce(self, buffer: np.ndarray) -> None: ...


class Compression(abc.ABC):
    """A form in which float32 vectors of gradients travel.

    Most forms are a `Packing`: each message is packed. Others make fewer numbers of a whole vector, which ranks sum as
    they are, and have a `sum` of their own. The arguments of a form are its attributes, of the same names.

    What is not finite stays so, whatever bits a NaN has: by it a step is known to have failed.

    Attributes:
        name: String. By which users ask for it, as in `Distribute(compression="int8")`.
        keeps_error: Bool. Whether what a step leaves out of a gradient is added to the next one, as with
            `ErrorFeedback`. Without it what is left out is lost.

    Example:

    >>> isinstance(easyscale.compression.get("int8"), Compression)
    True
    """

    name: str
    keeps_error: ClassVar[bool] = False

    @property
    def plain(self) -> "Compression":
        """The form itself, without `ErrorFeedback` around it."""
        return self

    def why_not(self, way: Any) -> str | None:
        """Return the reason for which vectors cannot travel so along an `Exchange`, or `None` if they can."""
        return None

    def shortens(self, shape: tuple[int, ...]) -> bool:
        """Return whether a gradient of this shape has fewer numbers, or smaller ones, in this form."""
        return True

    @abc.abstractmethod
    def sum(
        self, way: Way, vector: np.ndarray, step: StepOfForm, left_out: np.ndarray | None = None, gathers: bool = True
    ) -> None:
        """Overwrite `vector` with its sum over ranks. All ranks must call this alike, and get the same bits.

        Args:
            way: The connected `Exchange`.
            vector: Vector of float32.
            step: The `StepOfForm`.
            left_out: Vector of zeros, as long. What is not in the sum, of what this rank has put into it, is added to
                it: so the sum, and what is left out on all ranks, make together what all have given. Defaults to
                `None`: it is lost.
            gathers: Bool. Whether the whole sum is needed on each rank, or only what the rank owns of it. Defaults to
                `True`.
        """

    def get_config(self) -> dict[str, Any]:
        """Return the arguments by which another is made like this one."""
        names = inspect.signature(type(self)).parameters if type(self).__init__ is not object.__init__ else ()
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"
