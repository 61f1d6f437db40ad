"""Calls of a model with one stage on each rank, without training."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import keras_internals
from easyscale.backend.base import Backend
from easyscale.communicator import Communicator, Request
from easyscale.errors import DesyncError
from easyscale.parallel.pipeline.cut import Cut
from easyscale.parallel.pipeline.forward_pass import StageLayers, outputs_of, summed, weight_losses
from easyscale.step.python_calls import PythonCalls

__all__ = ["CALL", "Inference"]

CALL = -3  # `CALL - samples` is the first stage's message that it calls the model; numbers above are other messages

Spec = tuple[tuple[int | None, ...], np.dtype]
_Sent = list[tuple[Request, np.ndarray]]  # keeps messages in memory until they have arrived


class Inference:
    """Calls a model together with the ranks that have its other stages, which must pass equally many samples.

        stage 0                    stage 1                    stage 2
        inputs --> layers -- activations --> layers -- ... --> layers --> outputs
               labels ------------------------------------------------->
                                   outputs <-------------------    if all stages want them

    Inputs and labels are taken from the first stage; those of other ranks may differ. Each call sends every crossing
    once, 8 bytes to each stage, and labels with 8 bytes from each, or outputs. With `S` stages, a stage waits for a
    call's messages in the `S`-th call after it: while stage 2 has a batch, stage 0 is two ahead.

    Args:
        cut: The `Cut`.
        communicator: The `Communicator` of the pipeline's stages, of which this rank is one.
        backend: The `Backend`.
        answer: Function. Called with the first stage's messages other than calls.

    Attributes:
        is_last: Bool. Whether this rank has the last stage, which has the outputs.
    """

    def __init__(self, cut: Cut, communicator: Communicator, backend: Backend, answer: Callable[[int], None]):
        self._cut, self._communicator, self._answer = cut, communicator, answer
        self._calls, self._layers = PythonCalls(backend), StageLayers(cut, communicator.rank)
        self._part, self._stages = cut.stages[communicator.rank], communicator.size
        self._is_first, self.is_last = communicator.rank == 0, communicator.rank == self._stages - 1
        self._under_way: list[_Sent] = []  # one list per call
        counted = {id(variable) for variable in cut.stages[-1].used} if not self.is_last else set()
        self._regularized = [one for one in self._part.trainable_variables if id(one) not in counted]

    # Called while a graph is traced

    def begin(self, inputs: Any, labels: Sequence[Any] = ()) -> list:
        """Have all stages call the model; return the labels, on the last stage those of the first one.

        Args:
            inputs: Nested structure of tensors: the model's inputs, from each stage's own data.
            labels: List of tensors. Defaults to none.
        """
        samples = _samples(keras.tree.flatten(inputs))
        if self.is_last:
            return self._calls(self._take_labels, [samples, *labels], [_spec(one) for one in labels])
        if self._is_first:
            self._calls(self._give_labels, [samples, *labels], [])
        else:
            self._calls(self._hear, [samples], [])
        return list(labels)

    def forward(self, inputs: Any, training: bool, with_losses: bool) -> tuple[Any, Any]:
        """Return the model's outputs on the last stage, `None` elsewhere, and the losses added by the other stages.

        Args:
            inputs: Nested structure of tensors: the model's inputs.
            training: Bool. Whether layers are called in training mode.
            with_losses: Bool. Whether losses of layers and regularizers are wanted; otherwise they are zero.
        """
        own = keras_internals.standardized(self._cut.graph, inputs)
        takes_losses = with_losses and self.is_last
        specs: list[Spec] = [((None, *crossing.shape), crossing.dtype) for crossing in self._part.receives]
        specs += [((), np.dtype("float64"))] * takes_losses
        receive = functools.partial(self._receive, takes_losses)
        came = self._calls(receive, [_samples(own)], specs) if specs else []
        added = came.pop() if takes_losses else 0.0
        known, of_layers = self._layers([*(own if self._is_first else ()), *came], training)
        if self._layers.problem:
            raise ValueError(self._layers.problem)
        if self.is_last:
            return outputs_of(self._cut.graph, known), added
        sent = [known[id(crossing.tensor)] for crossing in self._part.sends]
        if with_losses:
            added = sum(summed([*weight_losses(self._regularized), *of_layers]))
            sent.append(keras.ops.cast(added, "float64"))
        self._calls(self._send, sent, [])
        return None, 0.0

    def share(self, outputs: Any) -> Any:
        """Return the last stage's outputs of the model on all stages."""
        wanted = self._cut.graph.outputs
        flat = keras.tree.flatten(wanted)
        if self.is_last:
            self._calls(self._give_outputs, keras.tree.flatten(outputs), [])
            return outputs
        specs = [_spec(tensor) for tensor in flat]
        came = self._calls(functools.partial(self._take_outputs, specs), [], specs)
        return keras.tree.pack_sequence_as(wanted, came)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raise errors of calls within this context as they were, without the backend's wrapping."""
        with self._calls.explained():
            yield
        self.finish()

    def finish(self) -> None:
        """Wait until everything that was sent has arrived."""
        while self._under_way:
            _wait(self._under_way.pop(0))

    # Called by the graph, with arrays

    def _give_labels(self, samples: np.ndarray, *labels: np.ndarray) -> None:
        self._open()
        for stage in range(1, self._stages):
            self._start(np.array([CALL - int(samples)]), stage)
        for label in labels:
            self._start(np.array(label), self._stages - 1)

    def _take_labels(self, samples: np.ndarray, *labels: np.ndarray) -> list[np.ndarray]:
        self._hear(samples)
        came = [np.empty(label.shape, label.dtype) for label in labels]
        for request in [self._into(label, 0) for label in came]:
            request.wait()
        return came

    def _hear(self, samples: np.ndarray) -> None:
        self._open()
        row = np.zeros(1, int)
        while row[0] > CALL:
            self._communicator.receive(row, 0)
            if row[0] > CALL:
                self._answer(int(row[0]))
        if int(samples) != CALL - row[0]:
            raise DesyncError(
                "all stages of a pipeline must be given as many samples. Received: a batch of "
                f"{CALL - row[0]} on the first one, of {int(samples)} on stage {self._communicator.rank}. Call "
                "`evaluate` and `predict` on all ranks, with the same data"
            )

    def _receive(self, takes_losses: bool, samples: np.ndarray) -> list[np.ndarray]:
        came = [np.empty((int(samples), *crossing.shape), crossing.dtype) for crossing in self._part.receives]
        added = [np.zeros(1) for _ in range((self._stages - 1) * takes_losses)]
        sources = [crossing.source for crossing in self._part.receives]
        requests = [self._into(buffer, source) for buffer, source in zip(came, sources, strict=True)]
        requests += [self._into(row, stage) for stage, row in enumerate(added)]
        for request in requests:
            request.wait()
        return [*came, *([np.array(sum(row[0] for row in added))] * takes_losses)]

    def _send(self, *arrays: np.ndarray) -> None:
        targets = [crossing.target for crossing in self._part.sends]
        for array, target in itertools.zip_longest(arrays, targets, fillvalue=self._stages - 1):
            self._start(np.array(array), target)  # the loss comes after the crossings

    def _give_outputs(self, *outputs: np.ndarray) -> None:
        for output in outputs:
            sizes, copy = np.array(output.shape), np.array(output)
            for stage in range(self._stages - 1):
                self._start(sizes, stage)
                self._start(copy, stage)

    def _take_outputs(self, specs: Sequence[Spec]) -> list[np.ndarray]:
        came = []
        for shape, dtype in specs:
            sizes = np.zeros(len(shape), int)
            self._into(sizes, self._stages - 1).wait()
            came.append(np.empty(sizes, dtype))
            self._into(came[-1], self._stages - 1).wait()
        return came

    def _open(self) -> None:
        """Begin a call; wait for the messages of an old one."""
        while len(self._under_way) >= self._stages:
            _wait(self._under_way.pop(0))
        self._under_way.append([])

    def _start(self, array: np.ndarray, to: int) -> None:
        """Start sending an array, which must not be written to."""
        self._under_way[-1].append((self._communicator.isend(array, to), array))

    def _into(self, buffer: np.ndarray, source: int) -> Request:
        return self._communicator.ireceive(buffer, source)


def _wait(sent: _Sent) -> None:
    for request, _ in sent:
        request.wait()


def _samples(tensors: Sequence[Any]) -> Any:
    return keras.ops.cast(keras.ops.shape(tensors[0])[0], "int64")


def _spec(tensor: Any) -> Spec:
    """Return the shape, with a variable first dimension, and the dtype of a tensor."""
    return (None, *tensor.shape[1:]), np.dtype(keras.backend.standardize_dtype(tensor.dtype))
