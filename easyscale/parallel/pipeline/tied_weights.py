"""Weights that layers of several stages use: the first of these trains them, and sends the others the new values."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from easyscale.backend.base import Backend
from easyscale.communicator import Communicator, Request
from easyscale.layout.specs import Variable
from easyscale.parallel.pipeline.cut import Tied

__all__ = ["TiedWeights"]

_WHOLE = -1  # in place of a number of rows: the gradient is dense

Sending = list[tuple[Request, np.ndarray]]  # keeps messages in memory until they have arrived


class TiedWeights:
    """Communication between stages for the weights that they share.

    In a step, every other stage that uses a weight sends its gradient, after 8 bytes that state its form, to the stage
    that trains it, which sends the new value back. A row-sparse gradient of an embedding is sent as rows and their
    indices, 8 bytes each. If it is row-sparse on all of these stages it stays so, because optimizers square and clip
    each row that was looked up separately.

    Args:
        tied: List of the `Tied` weights of the model.
        communicator: The `Communicator` of the pipeline's stages, of which this rank is one.
        backend: The `Backend`.
        variables: The variables of this stage, in the order of their gradients.

    Attributes:
        whole: Set. The numbers of the variables trained by this stage whose gradients are dense on this or another
            stage. Known after the first step.
    """

    def __init__(
        self, tied: Sequence[Tied], communicator: Communicator, backend: Backend, variables: Sequence[Variable]
    ):
        self._communicator, self._backend = communicator, backend
        self._owned = [one for one in tied if one.owner == communicator.rank]
        self._borrowed = [one for one in tied if communicator.rank in one.users]
        self._numbers = {id(variable): number for number, variable in enumerate(variables)}
        self.whole: set[int] = set()

    def sum_up(self, gradients: list) -> None:
        """Add the other stages' gradients to those of the weights that this stage trains. All stages call this."""
        sending: Sending = []
        for tied in self._borrowed:
            sending += self._send(gradients[self._numbers[id(tied.variable)]], tied.owner)
        for tied in self._owned:
            number = self._numbers[id(tied.variable)]
            parts = [gradients[number], *(self._receive(tied.variable, user) for user in tied.users)]
            if all(map(self._backend.tensors.is_rows, parts)):
                values, indices = zip(*map(self._backend.tensors.values_and_indices, parts), strict=True)
                joined = keras.ops.concatenate(values, axis=0), keras.ops.concatenate(indices, axis=0)
                gradients[number] = self._backend.tensors.rows(*joined, tied.variable.shape)
            else:
                self.whole.add(number)
                whole = sum(self._whole_of(part, tied.variable) for part in parts)
                gradients[number] = keras.ops.convert_to_tensor(whole)
        _finish(sending)

    def share(self) -> None:
        """Send the other stages the values of weights that this one trains, and receive those of others."""
        sending: Sending = []
        for tied in self._owned:
            for user in tied.users:
                sending.append(self._begin(self._backend.view(tied.variable), user))
        for tied in self._borrowed:
            value = np.empty(tuple(tied.variable.shape), tied.variable.dtype)
            self._communicator.receive(value, tied.owner)
            tied.variable.assign(value)
        _finish(sending)

    def _send(self, gradient: Any, to: int) -> Sending:
        if not self._backend.tensors.is_rows(gradient):
            return [self._begin(np.array([_WHOLE]), to), self._begin(keras.ops.convert_to_numpy(gradient), to)]
        values, indices = map(keras.ops.convert_to_numpy, self._backend.tensors.values_and_indices(gradient))
        return [self._begin(array, to) for array in (np.array([len(indices)]), values, indices) if array.size]

    def _begin(self, array: np.ndarray, to: int) -> tuple[Request, np.ndarray]:
        array = np.ascontiguousarray(array)
        return self._communicator.isend(array, to), array

    def _receive(self, variable: Variable, source: int) -> Any:
        """Receive another stage's gradient of a variable."""
        shape, count = tuple(variable.shape), np.empty(1, int)
        self._communicator.receive(count, source)
        is_whole = count[0] == _WHOLE
        values = np.empty(shape if is_whole else (count[0], *shape[1:]), variable.dtype)
        indices = np.empty(0 if is_whole else count[0], "int64")
        for array in (values, indices):
            if array.size:
                self._communicator.receive(array, source)
        return values if is_whole else self._backend.tensors.rows(values, indices, shape)

    def _whole_of(self, gradient: Any, variable: Variable) -> Any:
        if not self._backend.tensors.is_rows(gradient):
            return gradient
        values, indices = map(keras.ops.convert_to_numpy, self._backend.tensors.values_and_indices(gradient))
        whole = np.zeros(tuple(variable.shape), variable.dtype)
        np.add.at(whole, indices, values)
        return whole


def _finish(sending: Sending) -> None:
    for request, _ in sending:
        request.wait()
