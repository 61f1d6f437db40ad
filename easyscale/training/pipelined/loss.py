"""Loss and metrics of a micro-batch, on the last stage.

The loss is a mean over the samples of the micro-batch. Its weight in the batch's loss is the micro-batch's fraction of
the samples, and a metric weights a mean by its samples: so all micro-batches of all pipelines together are equivalent
to the batch of one process. A loss that is a sum, or divided by weights or by the number of unmasked elements, is
converted to such a mean: see `training.parts.losses`, and `divisors` for its divisor.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from easyscale import keras_internals
from easyscale.parallel.pipeline.batch import Form
from easyscale.step.whole_batch import WholeBatch
from easyscale.training.current_step import step_of
from easyscale.training.pipelined.part_of_batch import PartOfBatch

__all__ = ["Labels", "LossOfStage"]


class Labels:
    """Targets and sample weights, which travel as a flat list of arrays.

    Args:
        y: Nested structure of tensors, or `None`.
        sample_weight: The same.

    Attributes:
        arrays: List of arrays, with a row for each sample.
    """

    def __init__(self, y: Any, sample_weight: Any):
        self._structure = y, sample_weight
        self._leaves = keras.tree.flatten(self._structure)
        self.arrays = [keras.ops.convert_to_numpy(leaf) for leaf in self._leaves if leaf is not None]

    @property
    def forms(self) -> list[Form]:
        """The `Form` of each array."""
        return [(array.shape[1:], array.dtype) for array in self.arrays]

    def described(self) -> list:
        """Return what must match between the stage that sends them and the one that receives them, for JSON."""
        forms = [[list(shape), dtype.name] for shape, dtype in self.forms]
        return [forms, [leaf is not None for leaf in self._leaves]]

    def packed(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Return targets and sample weights with these tensors."""
        left = iter(tensors)
        leaves = [None if leaf is None else next(left) for leaf in self._leaves]
        y, sample_weight = keras.tree.pack_sequence_as(self._structure, leaves)
        return y, sample_weight


class LossOfStage:
    """Computes the loss of a micro-batch, and updates the model's metrics.

    Args:
        model: The model.
        batch: The `WholeBatch` of the replication between pipelines.
        labels: `Labels` of any batch, for their structure.
    """

    def __init__(self, model: keras.Model, batch: WholeBatch, labels: Labels):
        self._model, self._batch, self._labels = model, batch, labels

    def __call__(self, outputs: Any, labels: list, numbers: Any, added: list) -> Any:
        model, samples = self._model, numbers[0]
        y, sample_weight = self._labels.packed(labels)
        with step_of(_MicroBatch(self._batch, numbers)):
            losses = [keras_internals.compiled_loss(model, y, outputs, sample_weight), *added]
            losses = [loss for loss in losses if loss is not None]
            if not losses:
                raise ValueError("a model must have a loss. Received: none. Give `compile` one, or add it in a layer")
            loss = sum(losses)
            model.metrics[0].update_state(loss, sample_weight=samples)  # the metric of the loss
            model.compute_metrics(None, y, outputs, sample_weight=sample_weight)
        return loss


class _MicroBatch(PartOfBatch):
    """One micro-batch of those of all pipelines, as seen by losses and metrics.

    Args:
        batch: The `WholeBatch` of the replication between pipelines.
        numbers: Vector: the samples of the micro-batch, those of all, and the totals of losses that are not means over
            samples, in the order in which losses request them; see `Divisors`.
    """

    def __init__(self, batch: WholeBatch, numbers: Any):
        super().__init__(batch, samples=numbers[0])
        self._all_samples = numbers[1]
        self._totals = (numbers[index] for index in range(2, numbers.shape[0]))

    def total(self, vector: Any, fingerprint: Any = None) -> Any:
        """Return the number of all samples and, if there are two numbers, the divisor of a loss.

        Requests of metrics follow those of losses. They get their own number back, as they sum over micro-batches.
        """
        own = keras.ops.unstack(vector, num=vector.shape[0])[1:]
        numbers = [self._all_samples, *(next(self._totals, divisor) for divisor in own)]
        return keras.ops.stack([keras.ops.cast(number, vector.dtype) for number in numbers])


def numbers_of(results: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the results of metrics as arrays."""
    return {name: np.asarray(keras.ops.convert_to_numpy(value), "float64") for name, value in results.items()}
