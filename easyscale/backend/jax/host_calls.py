"""Calls from steps into Python: from compiled code as foreign calls, from eager code immediately."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from easyscale.backend.jax import foreign_calls, on_gpus
from easyscale.backend.jax.foreign_calls import ForeignCall
from easyscale.layout.specs import Spec

__all__ = ["HostCalls", "in_users_trace", "is_tracing", "last_call", "tracing"]


class _Trace(threading.local):
    """The code that this thread is tracing."""

    depth = 0
    order: jax.Array | None = None  # a result of the last call
    calls: list[ForeignCall] | None = None


_trace = _Trace()
_order = Spec((), np.dtype("int32"))
_kept: list[ForeignCall] = []  # of functions that a user compiles, which live for an unknown time


@contextlib.contextmanager
def tracing(calls: list[ForeignCall]) -> Iterator[None]:
    """Run the calls made within this context from compiled code, in the order in which they are made.

    Args:
        calls: List. Receives the calls; the compiled code must not outlive it.
    """
    before = _trace.depth, _trace.order, _trace.calls
    _trace.depth, _trace.order, _trace.calls = _trace.depth + 1, None, calls
    try:
        yield
    finally:
        _trace.depth, _trace.order, _trace.calls = before


def is_tracing() -> bool:
    """Return whether this thread is in `tracing`."""
    return _trace.depth > 0


def last_call() -> jax.Array | None:
    """Return a result of the last call in `tracing`. Calls after which nothing uses one are not made."""
    return _trace.order


def in_users_trace(tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context for calls with these tensors, which code that a user compiles may have computed."""
    is_traced = any(isinstance(tensor, jax.core.Tracer) for tensor in tensors)
    return tracing(_kept) if is_traced and not is_tracing() else contextlib.nullcontext()


class HostCalls:
    """Runs calls in order, in the memory of the arrays. See `base.HostCalls`.

    Eager code gets copies of the results. A float64 becomes a float32 unless JAX is configured for float64.
    """

    def __call__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
        stay: int = 0,
    ) -> list[jax.Array]:
        if is_tracing():
            return _call_from_compiled(function, inputs, results)
        inputs = [jax.lax.stop_gradient(value) if isinstance(value, jax.core.Tracer) else value for value in inputs]
        go, left = inputs[: len(inputs) - stay], inputs[len(inputs) - stay :]
        returned = function(*on_gpus.staged(go), *map(on_gpus.array_of, left))
        if not results:
            return []
        return on_gpus.tensors_of(returned, [dtype for _, dtype in results])


def _call_from_compiled(function: Callable[..., Any], inputs: Sequence[Any], results: Sequence) -> list[jax.Array]:
    given = [getattr(value, "value", value) for value in inputs]
    positions = [number for number, value in enumerate(given) if isinstance(value, jax.Array)]
    tensors = [jax.lax.stop_gradient(given[number]) for number in positions]
    constants = [None if isinstance(value, jax.Array) else np.asarray(value) for value in given]

    def run(arrays: Sequence[np.ndarray]) -> Any:
        values = list(constants)
        for number, array in zip(positions, arrays, strict=True):
            values[number] = array
        return function(*values)

    specs = [_order, *(Spec(tuple(shape), jax.dtypes.canonicalize_dtype(dtype)) for shape, dtype in results)]
    if foreign_calls.why_not() is not None:
        _trace.order, *tensors = _call_back(run, tensors, specs)
        return tensors

    def write(arrays: list[np.ndarray], buffers: list[np.ndarray]) -> None:
        returned = run(arrays[:-1])
        for buffer, value in zip(buffers[1:], returned if results else (), strict=True):
            np.copyto(buffer, np.reshape(value, buffer.shape), casting="unsafe")

    order = jnp.zeros(*_order) if _trace.order is None else _trace.order
    call = ForeignCall(write, [*(Spec(one.shape, one.dtype) for one in tensors), _order], specs)
    assert _trace.calls is not None
    _trace.calls.append(call)
    _trace.order, *tensors = call(*tensors, order)
    return tensors


def _call_back(run: Callable, tensors: Sequence[jax.Array], specs: Sequence[Spec]) -> list[jax.Array]:
    """Call `run` by JAX's own callbacks, which are copies. They keep their order, and do not deadlock on GPUs."""

    def call(*arrays: Any) -> list[np.ndarray]:
        returned = run([np.asarray(array) for array in arrays])
        values = [np.zeros(()), *(returned if len(specs) > 1 else ())]
        return [np.asarray(value, dtype).reshape(shape) for value, (shape, dtype) in zip(values, specs, strict=True)]

    return list(io_callback(call, [jax.ShapeDtypeStruct(*spec) for spec in specs], *tensors, ordered=True))
