"""An exchange whose messages are compressed."""

from collections.abc import Callable

import numpy as np

from easyscale.communicator import Communicator
from easyscale.compression import Packing
from easyscale.exchange.exchange import Exchange

__all__ = ["Compressed"]


class Compressed(Exchange):
    """Another exchange, through which float32 vectors travel compressed. All else is unchanged.

    In a reduction the sender packs each message, and the receiver sums it in float32. On the way back a part's owner
    keeps what the others unpack, so that all ranks end with the same bits. Data that ranks read in shared memory are
    not sent, and stay unchanged.

    Gradients tolerate rounding and weights do not, so updates that send weights, such as `"sharded"`, refuse it.
    `Distribute(compression=...)` compresses only gradients.

    Args:
        exchange: A connected `Exchange`.
        form: `Packing`. The same on all ranks.

    Raises:
        TypeError: If one of them is a name or a class.

    Example:

    >>> ring = easyscale.exchange.get("ring")
    >>> Compressed(ring, easyscale.compression.available()["fp16"]())
    <Compressed exchange>
    """

    is_exact = False

    def __init__(self, exchange: Exchange, form: Packing):
        if not isinstance(exchange, Exchange):
            got = exchange if isinstance(exchange, str) else type(exchange).__name__
            raise TypeError(
                f"`exchange` must be an `Exchange`. Received: {got!r}. Try `easyscale.exchange.get('ring')`"
            )
        if not isinstance(form, Packing):
            got = form if isinstance(form, str | type) else type(form).__name__
            raise TypeError(
                f"`form` must be a `Packing`. Received: {got!r}. Try `easyscale.compression.available()['fp16']()`"
            )
        self._exchange, self._form = exchange, form
        self.has_servers, self.is_elastic = exchange.has_servers, exchange.is_elastic
        self.passes_sums_on = exchange.passes_sums_on
        self.travels_by = exchange.travels_by
        self.name = f"{exchange.name} {form.name}"
        self.connect(exchange.communicator)

    def allocate(self, length: int, dtype: str | np.dtype = "float32") -> np.ndarray:
        return self._exchange.allocate(length, dtype)

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> np.ndarray:
        return self._exchange.lend(length, dtype, common)

    def shrink(self) -> None:
        self._exchange.shrink()

    def owned(self, length: int) -> slice:
        return self._exchange.owned(length)

    def over(self, wrap: Callable[[Communicator], Communicator]) -> Exchange:
        return Compressed(self._exchange.over(wrap), self._form)

    def _reduce(self, buffer: np.ndarray) -> None:
        self._form.reduce(self._exchange, buffer)

    def _gather(self, buffer: np.ndarray) -> None:
        self._form.gather(self._exchange, buffer)
