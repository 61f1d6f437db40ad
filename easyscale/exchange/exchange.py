"""The base class of all exchanges: who owns which part of a vector, and how it travels there and back.

An exchange knows vectors, nothing of TensorFlow or Keras. It sums; dividing by the number of ranks is for the caller.
"""

import abc
import copy
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from easyscale.communicator import Communicator
from easyscale.compression import PackedMessages
from easyscale.exchange.lending import Lending
from easyscale.exchange.vectors import HALF, aligned, check

__all__ = ["Cost", "Exchange", "Path"]


class Cost(NamedTuple):
    """What an `allreduce` costs the busiest rank.

    Attributes:
        steps: Int. Messages that have to follow one another: a rank sends one at a time, and receives one at a time.
        messages: Int. Messages that the rank sends.
        bytes: Int. Bytes that the rank sends.

    Example:

    >>> easyscale.exchange.get("ring").cost(8, 100_000_000)
    Cost(steps=14, messages=14, bytes=175000000)
    """

    steps: int
    messages: int
    bytes: int


class Path(NamedTuple):
    """What follows one another in an `allreduce`, and so takes time: the way that nothing can be done beside.

    Attributes:
        steps: Int. Messages.
        bytes: Int. Bytes through the link of the busiest rank, or node.
        memory: Int. Bytes that the busiest rank reads and writes in memory.
    """

    steps: int
    bytes: float
    memory: float


class Exchange(abc.ABC):
    """How a vector is summed over ranks.

    Every element of the vector has one owner. `reduce` brings the sum of a range to its owner, `gather` brings it back
    to every rank. A subclass provides these two as `_reduce` and `_gather` and, if not every rank owns its part,
    `owned`. It is made without a communicator and connected to one by `easyscale.exchange.get`.

    Attributes:
        name: String. By which `get`, the command line and error messages know it.
        options: What may stand behind the name and a colon, as in `"hierarchical:tree"`; it is the class's argument.
        has_servers: Bool. Whether some ranks may be servers, which own everything.
        is_synchronous: Bool. Whether all workers' gradients make one step.
        is_elastic: Bool. Whether it goes on when ranks have been left out; see `shrink`.
        is_exact: Bool. Whether `gather` brings every number as it is.
        passes_sums_on: Bool. Whether sums of some ranks travel, as around a ring: half types are rounded at each.
        travels_by: String. `"messages"`, which may have another form, the node's `"memory"`, or a `"library"`.
        on_gpus: Bool. Whether the vectors that it lends are in the memory of GPUs. See `on_gpus.py`.
        communicator: The `Communicator` that it is connected to.

    Example; a whole one is `examples/custom_exchange.py`:

    >>> easyscale.exchange.get("ring").owned(10)  # with one rank
    slice(0, 10, None)
    """

    name: str = ""
    options: tuple[str, ...] = ()
    has_servers: bool = False
    is_synchronous: bool = True
    is_elastic: bool = False
    is_exact: bool = True
    passes_sums_on: bool = False
    travels_by: Literal["messages", "memory", "library"] = "messages"
    on_gpus: bool = False
    _communicator: Communicator | None = None

    @functools.cached_property
    def _lending(self) -> Lending:
        return Lending()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__name__

    @property
    def communicator(self) -> Communicator:
        if self._communicator is None:
            raise ValueError(f"{self!r} must be connected first. Use `easyscale.exchange.get(exchange, communicator)`")
        return self._communicator

    def connect(self, communicator: Communicator) -> "Exchange":
        """Use `communicator` from now on; return the exchange itself."""
        if self._communicator not in (None, communicator):
            raise ValueError(f"an exchange must keep to one communicator, and {self!r} has another. Make a second one")
        if communicator.servers and not self.has_servers:
            raise ValueError(
                f"servers need an exchange that has some, as 'parameter_server'. Received: exchange='{self.name}' and "
                f"{communicator.servers} servers. Start without --servers"
            )
        self._communicator = communicator
        return self

    @staticmethod
    def cost(size: int, nbytes: int) -> Cost | None:
        """Return the `Cost` of an `allreduce` of `nbytes` over `size` ranks, or `None` if it is not known.

        Meant for vectors of a length that `size` divides.
        """
        return None

    def critical_path(self, size: int, nbytes: int, local_size: int = 1, servers: int = 0) -> Path | None:
        """Return the `Path` of an `allreduce` with `local_size` ranks on each node, or `None` if there is none.

        By default it is what `cost` says, and of what is sent half is summed up: two numbers are read, one is written.
        """
        cost = self.cost(size, nbytes)
        return cost and Path(cost.steps, cost.bytes, 1.5 * cost.bytes)

    @classmethod
    def suits(cls, communicator: Communicator) -> bool:
        """Return whether "auto" may choose this exchange for these ranks. By default it may."""
        return True

    def allocate(self, length: int, dtype: str | np.dtype = "float32") -> np.ndarray:
        """Return a vector of zeros in the memory that this exchange moves fastest. All ranks must call this alike.

        Args:
            length: Int. The number of elements.
            dtype: The dtype of the elements. Defaults to `"float32"`.
        """
        return aligned(length, dtype)

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> np.ndarray:
        """Return a vector as `allocate` does, but with undefined values. All ranks must call this alike.

        When no rank has a view of it any more the memory is lent again.

        Args:
            length: Int. The number of elements.
            dtype: The dtype of the elements. Defaults to `"float32"`.
            common: Bool. Whether the ranks of a node may be given one and the same vector, if the exchange has such: to
                write what they own to and `gather` it. Defaults to `False`.
        """
        return self._lending.lend(length, np.dtype(dtype), self.allocate)

    def shrink(self) -> None:
        """Go on with the communicator's new ranks. All of them must call this alike.

        Memory that was lent is not lent again: what the lost rank had begun to send may still arrive there.
        """
        vars(self).setdefault("_left_behind", []).append(vars(self).pop("_lending", None))

    def over(self, wrap: Callable[[Communicator], Communicator]) -> "Exchange":
        """Return this exchange, on the same ranks and with the same memory, over another communicator.

        Args:
            wrap: Function. Takes the communicator by which it sends, and returns another of the same ranks.
        """
        other = copy.copy(self)
        other._communicator = wrap(self.communicator)
        return other

    def owned(self, length: int) -> slice:
        """Return the part of a vector of `length` elements that this rank owns: by default the rank's `1 / P`."""
        return self._owned_range(length, self.communicator.rank)

    def reduce(self, buffer: np.ndarray) -> None:
        """Overwrite the owned part of `buffer` with its sum over ranks. The rest is undefined afterwards.

        Args:
            buffer: Contiguous vector of float16, bfloat16 (both travel as they are, and are summed in float32),
                float32, float64, int32 or int64: a sum that is passed on, as around a ring, is rounded at each rank.
                All ranks must pass the same length and dtype. Another number of bytes is an error, with `mpi` where
                the MPI library sees it; another dtype of as many bytes is one with `shared_memory` only.
        """
        check(buffer)
        if self.communicator.size == 1:
            return
        if buffer.dtype in HALF:
            wide, form = buffer.astype("float32"), HALF[buffer.dtype]
            self.over(lambda communicator: PackedMessages(communicator, form))._reduce(wide)
            own = self.owned(buffer.size)
            buffer[own] = wide[own]
        else:
            self._reduce(buffer)

    def gather(self, buffer: np.ndarray) -> None:
        """Overwrite the whole `buffer` with what each part's owner holds. Takes what `reduce` takes."""
        check(buffer)
        if self.communicator.size > 1:
            self._gather(buffer)

    def allreduce(self, buffer: np.ndarray) -> None:
        """Overwrite `buffer` with its sum over ranks: `reduce`, then `gather`. All ranks get the same bits.

        Example:

        >>> buffer = np.ones(3, "float32")
        >>> easyscale.exchange.get("ring").allreduce(buffer)
        >>> buffer  # on one rank
        array([1., 1., 1.], dtype=float32)
        """
        self.reduce(buffer)
        self.gather(buffer)

    @abc.abstractmethod
    def _reduce(self, buffer: np.ndarray) -> None:
        """`reduce` for two ranks or more and a dtype that can be summed as it is."""

    @abc.abstractmethod
    def _gather(self, buffer: np.ndarray) -> None:
        """`gather` for two ranks or more and any dtype."""

    def _owned_range(self, length: int, rank: int) -> slice:
        """The `rank`-th of `P` parts of equal length, to within one element."""
        size = self.communicator.size
        return slice(length * rank // size, length * (rank + 1) // size)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} exchange>"
