"""The actions of one stage in a step: its passes for each micro-batch, and the communication between them."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from easyscale.backend.base import Backend, StagePasses
from easyscale.communicator import Communicator, Request
from easyscale.parallel.pipeline.batch import Batch, Form
from easyscale.parallel.pipeline.crossings import Crossing
from easyscale.parallel.pipeline.cut import Cut
from easyscale.parallel.pipeline.forward_pass import ForwardPass, Loss
from easyscale.parallel.pipeline.schedules import Kind, Schedule
from easyscale.parallel.pipeline.tied_weights import TiedWeights

__all__ = ["Stage"]


class Stage:
    """One stage of a pipeline.

        stage 0                    stage 1                    stage 2
        inputs --> layers -- activations --> layers -- ... --> layers --> loss
               labels ------------------------------------------------->
                            <-- gradients --        <-- ... --

    For each micro-batch, a step sends the tensors that cross between stages, and their gradients back. The first stage,
    the only one that reads data, sends the labels to the last; each stage whose layers add to the loss, such as by
    regularizers, sends it a number. The last stage computes the loss of the whole model.

    Args:
        cut: The `Cut`.
        communicator: The `Communicator` of the pipeline's stages, of which this rank is one.
        schedule: The `Schedule`.
        backend: The `Backend`.
        loss: `Loss`, which the last stage calls in its graph.
        labels: The `Form` of each label, on the last stage.
        totals: Int. The length of `Batch.totals`. Defaults to `0`.
        wrap: Function. Takes the forward pass, and returns the function to trace. Defaults to `None`: no wrapping.

    Attributes:
        tied: The `TiedWeights`.
    """

    def __init__(
        self,
        cut: Cut,
        communicator: Communicator,
        schedule: Schedule,
        backend: Backend,
        loss: Loss,
        labels: Sequence[Form],
        totals: int = 0,
        wrap: Callable[[Callable[[list], list]], Callable[[list], list]] | None = None,
    ):
        self._totals, self._wrap = totals, wrap
        self._communicator, self._schedule, self._labels = communicator, schedule, list(labels)
        self._part = cut.stages[communicator.rank]
        self._forward = ForwardPass(cut, communicator.rank, loss, len(labels))
        self._is_first, self._is_last = communicator.rank == 0, communicator.rank == communicator.size - 1
        self._receives, self._sends = self._part.receives, self._part.sends
        self._backend, self._own = backend, self._part.trainable_variables
        self._variables = [*self._own, *self._part.borrowed]
        self.tied = TiedWeights(self._part.tied, communicator, backend, self._variables)
        self._adding: list[int] = []  # the other stages whose layers add to the loss
        if not self._is_last:
            self._passes = self._make_passes()
        told = communicator.all_gather_object([self._forward.adds_loss, self._forward.layers.problem])
        if problem := next((problem for _, problem in told if problem), ""):
            raise ValueError(problem)
        if self._is_last:
            self._adding = [stage for stage, (adds, _) in enumerate(told) if adds]
            self._passes = self._make_passes()
        self._under_way: list[tuple[Request, np.ndarray]] = []  # keeps messages in memory until they have arrived

    def _make_passes(self) -> StagePasses:
        forms: list[Form] = [(tensor.shape[1:], _dtype(tensor)) for tensor in self._forward.inputs]
        if self._is_last:
            forms += self._labels
        specs: list[tuple[tuple[int | None, ...], np.dtype]] = [((None, *shape), dtype) for shape, dtype in forms]
        if self._is_last:
            specs += [*[_numbers()] * len(self._adding), _numbers(2 + self._totals)]
        own = len(self._forward.inputs) - len(self._receives)
        watched = [own + number for number, crossing in enumerate(self._receives) if crossing.has_gradient]
        run = self._forward if self._wrap is None else self._wrap(self._forward)
        passes = self._backend.stage_passes(run, specs, watched, self._variables)
        passes.trace()
        return passes

    def step(self, batch: Batch, scale: float = 1.0) -> list:
        """Run the passes of all micro-batches; return each variable's gradient of the mean loss over the batch.

        Args:
            batch: The `Batch`.
            scale: Float. A factor of the loss, for gradients. Defaults to `1.0`.
        """
        into: dict[tuple[Kind, int], list[tuple[Request, np.ndarray]]] = {}
        results: dict[tuple[Kind, int], list[np.ndarray]] = {}
        for kind, number in self._schedule.actions(self._communicator.rank, self._communicator.size, len(batch.sizes)):
            if kind is Kind.RECEIVE_FORWARD:
                into[kind, number] = self._receive_forward(batch.sizes[number])
            elif kind is Kind.FORWARD:
                came = _arrived(into.pop((Kind.RECEIVE_FORWARD, number), []))
                results[kind, number] = self._passes.forward(number, self._inputs(batch, number, came))
            elif kind is Kind.SEND_FORWARD:
                self._send_forward(batch, number, results.pop((Kind.FORWARD, number)))
            elif kind is Kind.RECEIVE_BACKWARD:
                into[kind, number] = self._receive_backward(batch.sizes[number])
            elif kind is Kind.BACKWARD:
                came = _arrived(into.pop((Kind.RECEIVE_BACKWARD, number), []))
                by_loss = scale * batch.sizes[number] / batch.samples
                results[kind, number] = self._passes.backward(number, self._by_outputs(came, by_loss))
            else:
                self._send_backward(results.pop((Kind.BACKWARD, number)))
        gradients = self._passes.take(self.tied.whole)
        self.tied.sum_up(gradients)
        for request, _ in self._under_way:
            request.wait()
        self._under_way = []
        return gradients[: len(self._own)]

    def idle_step(self) -> list:
        """Return the gradients of a step in which this pipeline has no samples."""
        return self._passes.take(self.tied.whole)[: len(self._own)]

    def _inputs(self, batch: Batch, number: int, came: list[np.ndarray]) -> list[np.ndarray]:
        if self._is_first:
            came = [array[batch.part(number)] for array in batch.inputs]
        if self._is_last:
            totals = came.pop() if self._totals else batch.totals
            came.append(np.array([batch.sizes[number], batch.all_samples, *totals], keras.config.floatx()))
        return came

    # Communication. Two stages send and receive in the same order, given by `Cut`.

    def _receive(self, forms: Sequence[Form], source: int) -> list[tuple[Request, np.ndarray]]:
        buffers = [np.empty(shape, dtype) for shape, dtype in forms]
        return [(self._communicator.ireceive(buffer, source), buffer) for buffer in buffers]

    def _send(self, array: np.ndarray, to: int) -> None:
        array = np.ascontiguousarray(array)
        self._under_way = [sending for sending in self._under_way if not sending[0].done()]
        self._under_way.append((self._communicator.isend(array, to), array))

    def _receive_forward(self, size: int) -> list[tuple[Request, np.ndarray]]:
        came = []
        for crossing in self._receives:
            came += self._receive([((size, *crossing.shape), crossing.dtype)], crossing.source)
        if self._is_last:
            came += self._receive([((size, *shape), dtype) for shape, dtype in self._labels], 0)
            for source in self._adding:
                came += self._receive([_numbers()], source)
            if self._totals:
                came += self._receive([_numbers(self._totals)], 0)
        return came

    def _send_forward(self, batch: Batch, number: int, outputs: list[np.ndarray]) -> None:
        by_tensor = dict(zip(map(id, self._forward.outputs), outputs, strict=False))
        for crossing in self._sends:
            self._send(by_tensor[id(crossing.tensor)], crossing.target)
        if self._is_first:
            for label in batch.labels:
                self._send(label[batch.part(number)], self._communicator.size - 1)
        if self._forward.adds_loss:
            self._send(outputs[-1], self._communicator.size - 1)
        if self._is_first and self._totals:
            self._send(batch.totals.astype(keras.config.floatx()), self._communicator.size - 1)

    def _receive_backward(self, size: int) -> list[tuple[Request, np.ndarray]]:
        came = []
        for crossing in self._learning(self._sends):
            came += self._receive([((size, *crossing.shape), crossing.dtype)], crossing.target)
        return came

    def _by_outputs(self, came: list[np.ndarray], by_loss: float) -> list[np.ndarray | None]:
        """Return the gradient of each output: the sum over the stages that received it, or that of the loss."""
        losses: list[np.ndarray | None] = [np.array(by_loss, keras.config.floatx())]
        if self._is_last:
            return losses
        sums: dict[int, np.ndarray] = {}
        for crossing, gradient in zip(self._learning(self._sends), came, strict=True):
            known = sums.get(id(crossing.tensor))
            sums[id(crossing.tensor)] = gradient if known is None else known + gradient
        return [*(sums.get(id(tensor)) for tensor in self._forward.outputs), *losses * self._forward.adds_loss]

    def _send_backward(self, gradients: list[np.ndarray]) -> None:
        for crossing, gradient in zip(self._learning(self._receives), gradients, strict=True):
            self._send(gradient, crossing.source)

    @staticmethod
    def _learning(crossings: Sequence[Crossing]) -> list[Crossing]:
        return [crossing for crossing in crossings if crossing.has_gradient]


def _arrived(transfers: list[tuple[Request, np.ndarray]]) -> list[np.ndarray]:
    for request, _ in transfers:
        request.wait()
    return [buffer for _, buffer in transfers]


def _numbers(*shape: int) -> Form:
    return shape, np.dtype(keras.config.floatx())


def _dtype(tensor: Any) -> np.dtype:
    return np.dtype(object if tensor.dtype == "string" else tensor.dtype)
