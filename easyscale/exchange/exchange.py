"""The base class of exchanges: the owner of each part of a vector, and its way to the owner and back.

An exchange deals with vectors and knows nothing of TensorFlow or Keras. It sums; the caller divides by the number of
ranks.
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
    """The cost of an `allreduce` for the busiest rank.

    Attributes:
        steps: Int. Messages that must follow one another, if a rank sends one at a time and receives one at a time.
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
    """The critical path of an `allreduce`: the parts that follow one another and cannot overlap.

    Attributes:
        steps: Int. Messages.
        bytes: Float. Bytes through the link of the busiest rank, or node.
        memory: Float. Bytes that the busiest rank reads and writes in memory.
    """

    steps: int
    bytes: float
    memory: float


class Exchange(abc.ABC):
    """An algorithm that sums a vector over ranks.

    Every element of the vector has one owner. `reduce` brings the sum of a range to its owner, `gather` brings it back
    to every rank. A subclass provides these two as `_reduce` and `_gather` and, if the ranks do not own equal parts,
    `owned`. It is created without a communicator and connected to one by `easyscale.exchange.get`.

    Attributes:
        name: String. The name used by `get`, the command line and error messages.
        options: Tuple. Values for the class's argument that may follow the name, as in `"hierarchical:tree"`.
        has_servers: Bool. Whether some ranks may be servers, which own everything.
        is_synchronous: Bool. Whether all workers' gradients make one step.
        is_elastic: Bool. Whether it can go on after ranks have been left out; see `shrink`.
        is_exact: Bool. Whether `gather` delivers every number unchanged.
        passes_sums_on: Bool. Whether partial sums travel, as around a ring. Each rank rounds those of a half type.
        travels_by: String. `"messages"`, which can be compressed, the node's shared `"memory"`, or a `"library"`.
        on_gpus: Bool. Whether the vectors that it lends are in GPU memory. See `on_gpus.py`.
        communicator: The `Communicator` that it is connected to.

    Example; a complete one is `examples/custom_exchange.py`:

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

        It is exact for vectors whose length is divisible by `size`.
        """
        return None

    def critical_path(self, size: int, nbytes: int, local_size: int = 1, servers: int = 0) -> Path | None:
        """Return the `Path` of an `allreduce` with `local_size` ranks on each node, or `None` if there is none.

        By default it follows from `cost`, if half of the bytes sent are summed: two numbers are read, one is written.
        """
        cost = self.cost(size, nbytes)
        return cost and Path(cost.steps, cost.bytes, 1.5 * cost.bytes)

    @classmethod
    def suits(cls, communicator: Communicator) -> bool:
        """Return whether "auto" may choose this exchange for these ranks. True by default."""
        return True

    def allocate(self, length: int, dtype: str | np.dtype = "float32") -> np.ndarray:
        """Return a vector of zeros in the memory that this exchange moves fastest.

        Collective: all ranks must call this with the same arguments.

        Args:
            length: Int. The number of elements.
            dtype: The dtype of the elements. Defaults to `"float32"`.
        """
        return aligned(length, dtype)

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> np.ndarray:
        """Return a vector as `allocate` does, but with undefined values.

        Collective: all ranks must call this with the same arguments. The memory is lent again when no rank has a view
        of it any more.

        Args:
            length: Int. The number of elements.
            dtype: The dtype of the elements. Defaults to `"float32"`.
            common: Bool. Whether the ranks of a node may share one vector, if the exchange supports that: each writes
                the part that it owns, then they `gather` it. Defaults to `False`.
        """
        return self._lending.lend(length, np.dtype(dtype), self.allocate)

    def shrink(self) -> None:
        """Go on with the communicator's new ranks, all of which must call this.

        Memory that was lent is not lent again: data that the lost rank had begun to send may still arrive there.
        """
        vars(self).setdefault("_left_behind", []).append(vars(self).pop("_lending", None))

    def over(self, wrap: Callable[[Communicator], Communicator]) -> "Exchange":
        """Return this exchange over another communicator, with the same ranks and the same memory.

        Args:
            wrap: Function. Takes the communicator that it uses, and returns another of the same ranks.
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
            buffer: Contiguous vector of float16, bfloat16, float32, float64, int32 or int64. The half types travel as
                they are and are summed in float32; a sum that is passed on, as around a ring, is rounded at each rank.
                All ranks must pass the same length and dtype. Another number of bytes is an error, with `mpi` if the
                MPI library detects it; another dtype of as many bytes is an error only if ranks share memory.
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
        """Overwrite the whole `buffer` with the owners' parts. Takes the same buffers as `reduce`."""
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
        """Do `reduce` for two ranks or more and a dtype that can be summed directly."""

    @abc.abstractmethod
    def _gather(self, buffer: np.ndarray) -> None:
        """Do `gather` for two ranks or more and any dtype."""

    def _owned_range(self, length: int, rank: int) -> slice:
        """Return the `rank`-th of `P` parts of equal length, to within one element."""
        size = self.communicator.size
        return slice(length * rank // size, length * (rank + 1) // size)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} exchange>"
