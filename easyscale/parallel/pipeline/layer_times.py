"""Measured times of a model's layers."""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from easyscale import keras_internals
from easyscale.backend.base import Backend
from easyscale.parallel.pipeline.deferred import made_for_now
from easyscale.parallel.pipeline.forward_pass import call

__all__ = ["layer_times"]

_ROUNDS = 5  # after a warm-up; the fastest counts, as the least disturbed
_LEAST = 1e-6  # seconds for a layer that takes no longer than an empty call
_LENGTH = 16  # for dimensions of unknown length


def layer_times(graph: keras_internals.Graph, backend: Backend, samples: int) -> list[float]:
    """Return the seconds of each call's forward and backward pass, for a batch of ones.

    Each layer is traced separately, which takes some 50 ms, and called six times; activations of the whole model are in
    memory for one batch. State that a call changes, such as moving statistics, is restored.

    Args:
        graph: The `Graph`.
        backend: The `Backend`.
        samples: Int. The samples in the batch: those of a micro-batch.
    """
    known = {id(tensor): _ones(tensor, samples) for tensor in graph.inputs}
    nothing = _seconds(backend, lambda tensors: [tensors[0] + 1], [np.ones(1, "float32")], [])
    times = []
    for node in graph.nodes:
        with made_for_now(_of(node.operation, "variables")):
            times.append(max(_time_of(node, known, backend) - nothing, _LEAST))
    return times


def _time_of(node: Any, known: dict[int, np.ndarray], backend: Backend) -> float:
    """Return the seconds of a call's two passes, and add its outputs to `known`."""
    inputs = list({id(tensor): tensor for tensor in node.input_tensors}.values())
    layer = node.operation
    moving = [(variable, backend.view(variable).copy()) for variable in _of(layer, "non_trainable_variables")]

    def run(tensors: list) -> list:
        found = dict(zip(map(id, inputs), tensors, strict=True))
        call(node, found)
        return [found[id(tensor)] for tensor in node.outputs]

    arrays, outputs = [known[id(tensor)] for tensor in inputs], list[np.ndarray]()
    seconds = _seconds(backend, run, arrays, _of(layer, "trainable_variables"), outputs)
    known |= dict(zip(map(id, node.outputs), outputs, strict=True))
    for variable, value in moving:
        variable.assign(value)
    return seconds


def _seconds(
    backend: Backend,
    run: Callable[[list], list],
    arrays: list[np.ndarray],
    variables: list[keras.Variable],
    outputs: list[np.ndarray] | None = None,
) -> float:
    """Return the seconds of a function's two passes; its results are added to `outputs`."""
    specs: list[tuple[tuple[int | None, ...], np.dtype]] = [((None, *one.shape[1:]), one.dtype) for one in arrays]
    watched = [number for number, one in enumerate(arrays) if _is_float(one)]
    passes = backend.stage_passes(run, specs, watched, variables)
    passes.trace()
    seconds = []
    for number in range(1 + _ROUNDS):
        started = time.perf_counter()
        results = passes.forward(number, arrays)
        if any(map(_is_float, results)):
            passes.backward(number, [np.ones_like(one) if _is_float(one) else None for one in results])
            passes.take()
        seconds.append(time.perf_counter() - started)
    if outputs is not None:
        outputs += [np.array(one) for one in results]
    return min(seconds[1:])


def _of(layer: Any, name: str) -> list[keras.Variable]:
    return list(getattr(layer, name, ()))


def _ones(tensor: Any, samples: int) -> np.ndarray:
    shape = [samples, *(_LENGTH if length is None else length for length in tensor.shape[1:])]
    return np.full(shape, b"1", object) if tensor.dtype == "string" else np.ones(shape, tensor.dtype)


def _is_float(array: np.ndarray) -> bool:
    return keras.backend.is_float_dtype(array.dtype.name)
