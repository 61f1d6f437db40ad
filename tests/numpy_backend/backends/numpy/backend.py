"""The smallest backend of EasyScale: tensors are NumPy arrays, and a step is Python.

Keras computes on NumPy but has no gradients there, so there is no `fit()`: `../steps.py` has a loop that makes the
calls which a `fit()` makes, and `../toy.py` a model that knows its own gradients. Everything between
`optimizer.apply(gradients)` and the exchange is the same code as on every other backend.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from easyscale.backend.base import Backend, Feature, Tensors
from easyscale.backend.eager_replica import EagerReplica
from easyscale.step.shared import Shared
from easyscale.step.whole_batch import COMPARED, BatchOfProcesses

__all__ = ["BACKEND", "Rows"]


class Rows:
    """A gradient that is some rows of a matrix, in which a row may come several times.

    Args:
        values: Array, a row of the gradient in each of its rows.
        indices: Array of int64: which rows of the matrix these are.
        shape: Tuple. The shape of the matrix.
    """

    def __init__(self, values: np.ndarray, indices: np.ndarray, shape: tuple[int, ...]):
        self.values, self.indices, self.shape, self.dtype = values, indices, shape, values.dtype

    def whole(self) -> np.ndarray:
        """The matrix, in which rows that come several times are added up."""
        matrix = np.zeros(self.shape, self.values.dtype)
        np.add.at(matrix, self.indices, self.values)
        return matrix


def _whole(value: Any) -> np.ndarray:
    return value.whole() if isinstance(value, Rows) else np.asarray(getattr(value, "value", value))


class _Tensors(Tensors):
    def whole(self, value):
        return _whole(value)

    def dtype_of(self, tensor):
        return np.dtype(tensor.dtype)

    def zeros(self, spec):
        return np.zeros(spec.shape, spec.dtype)

    def part_of(self, gradient, part):
        return None if gradient is None else _whole(gradient).reshape(-1)[part]

    def nan_unless_finite(self, weight, tensors):
        return weight if all(np.isfinite(tensor).all() for tensor in tensors) else np.nan

    def if_true(self, condition, act):
        if condition:
            act()

    def is_rows(self, gradient):
        return isinstance(gradient, Rows)

    def values_and_indices(self, rows):
        return rows.values, rows.indices

    def rows(self, values, indices, shape):
        return Rows(np.array(values), np.array(indices), tuple(shape))

    def no_rows(self, spec):
        return Rows(np.zeros((0, *spec.shape[1:]), spec.dtype), np.zeros(0, np.int64), spec.shape)


def _call(function: Callable, inputs: Sequence, results: Sequence, stay: int = 0) -> list:
    returned = function(*map(_whole, inputs))
    return [np.array(value, dtype) for value, (_, dtype) in zip(returned, results, strict=True)] if results else []


class _Update:
    """Calls `apply` with dense gradients: Keras's optimizers know no rows on NumPy."""

    def __init__(self, calls):
        self._calls = calls

    def __call__(self, apply, gradients, variables, compiles=False):
        if not self._calls.rehearses:
            apply([None if gradient is None else _whole(gradient) for gradient in gradients], list(variables))

    def forget(self):
        """Nothing is compiled."""


class _Batch(BatchOfProcesses):
    def graph(self):
        return None

    def total(self, vector, fingerprint=None):
        return vector if self.size == 1 else self._sum(np.asarray(vector, "float64"), fingerprint).astype(vector.dtype)

    def moments(self, mean, variance, count):
        raise NotImplementedError("there is no layer here that asks for it")

    def count_samples(self, tensors):
        return float(len(tensors[0]))

    def beginnings(self, tensors):
        return [tensor.reshape(-1)[:COMPARED] for tensor in tensors]


class _Replica(EagerReplica):
    def batch(self, shared):
        return _Batch(self.communicator, shared, self._step)

    def rehearse(self, step, iterator, variables):
        before = [variable.numpy() for variable in variables]
        with Shared.of(self.communicator, self._backend).call.rehearsing():
            step(iterator.peek())
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


class _NumPy(Backend):
    name = "numpy"
    tensors = _Tensors()
    remedies = {Feature.IN_GRAPH: "Use 'between_graph'", Feature.PIPELINE: "Leave `model_parallel` out"}

    def host_calls(self):
        return _call

    def replicas(self, name):
        if name == "in_graph":
            self.require(Feature.IN_GRAPH)
        return _Replica

    def compiled_update(self, communicator, has_copies):
        return _Update(Shared.of(communicator, self).call)

    def graph(self, function):
        return function

    def view(self, variable):
        return np.array(_whole(variable))  # a variable's memory is written to when it changes

    def assign(self, variable, value):
        variable.assign(np.array(value).reshape(variable.shape))

    def sums_of_squares(self, gradients):
        return np.array([np.square(_whole(gradient).astype("float64")).sum() for gradient in gradients])

    def scaled(self, gradient, factor):
        if isinstance(gradient, Rows):
            return Rows((gradient.values * factor).astype(gradient.dtype), gradient.indices, gradient.shape)
        return (gradient * factor).astype(gradient.dtype)

    def random_state(self):
        return []

    def set_random_state(self, state):
        """NumPy's own generator is EasyScale's to restore."""

    def differ(self, communicator):
        """Nothing draws by a generator of the framework's own."""

    def agree_on_random_state(self, communicator):
        """Nothing draws by a generator of the framework's own."""

    def give_iterators(self, epoch_iterator):
        raise NotImplementedError("there is no `fit()` here")

    def take_out_chance(self, on_shuffle):
        """Nothing is shuffled."""

    def are_rows(self, tensors):
        return all(tensor.ndim for tensor in tensors)


BACKEND = _NumPy()
