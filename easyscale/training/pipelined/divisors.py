"""Divisors of losses over the whole batch, computed before its first micro-batch."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from easyscale import keras_internals
from easyscale.backend.base import Backend
from easyscale.communicator import Communicator
from easyscale.parallel.pipeline.forward_pass import call, outputs_of
from easyscale.step.whole_batch import WholeBatch
from easyscale.training.current_step import step_of
from easyscale.training.pipelined.loss import Labels
from easyscale.training.pipelined.part_of_batch import PartOfBatch

__all__ = ["Divisors"]


class Divisors:
    """Counts, on the first stage, the weights and the unmasked elements of all pipelines together.

    A loss with such a divisor is known only after the last micro-batch, but its gradient is needed before. So the
    model's loss is called in advance to find its divisors, with zeros for the outputs, and with the masks that follow
    from the inputs.

    Args:
        model: The model.
        graph: Its `Graph`.
        labels: `Labels` of any batch, for their structure.
        communicator: The `Communicator` of the first stages of all pipelines.
        backend: The `Backend`.
        batch: The `WholeBatch` of the replication between pipelines.
    """

    def __init__(
        self,
        model: keras.Model,
        graph: keras_internals.Graph,
        labels: Labels,
        communicator: Communicator,
        backend: Backend,
        batch: WholeBatch,
    ):
        self._model, self._graph, self._labels = model, graph, labels
        self._communicator, self._batch = communicator, batch
        masks = [mask for mask in graph.masks if mask is not None]
        self._nodes = keras_internals.calls_between(graph.inputs, masks) if masks else []
        self._run = backend.graph(self._count)
        self.count = 0

    def totals(self, inputs: Sequence[np.ndarray] = (), labels: Sequence[np.ndarray] = ()) -> np.ndarray:
        """Return the sums over pipelines, in the order in which losses request them. All first stages must call this.

        Args:
            inputs: The model's inputs in this step. Defaults to none: this pipeline has no samples.
            labels: Targets and sample weights.
        """
        own = np.zeros(self.count)
        if inputs:
            tensors = [[keras.ops.convert_to_tensor(array) for array in arrays] for arrays in (inputs, labels)]
            own = keras.ops.convert_to_numpy(self._run(*tensors)).astype("float64")
            self.count = own.size
        return self._communicator.all_gather_rows(own).sum(axis=0) if self.count else own

    def _count(self, inputs: list, labels: list) -> Any:
        samples = keras.ops.shape(inputs[0])[0]
        known = dict(zip(map(id, self._graph.inputs), inputs, strict=True))
        for node in self._nodes:
            call(node, known)
        for tensor in keras.tree.flatten(self._graph.outputs):
            known[id(tensor)] = keras.ops.zeros((samples, *(size or 1 for size in tensor.shape[1:])), tensor.dtype)
        y, sample_weight = self._labels.packed(labels)
        counting = _Counting(self._batch, samples)
        with step_of(counting):
            keras_internals.compiled_loss(self._model, y, outputs_of(self._graph, known), sample_weight)
        return keras.ops.stack(counting.asked) if counting.asked else keras.ops.zeros((0,))


class _Counting(PartOfBatch):
    """A batch that records the requests of losses.

    Args:
        batch: The `WholeBatch` of the replication between pipelines.
        samples: Scalar tensor. The samples of the batch.

    Attributes:
        asked: List of scalar tensors. The divisors of the losses.
    """

    def __init__(self, batch: WholeBatch, samples: Any):
        super().__init__(batch, samples)
        self.asked: list[Any] = []

    def total(self, vector: Any, fingerprint: Any = None) -> Any:
        if vector.shape[0] > 1:
            self.asked.append(keras.ops.cast(vector[1], "float64"))
        return vector
