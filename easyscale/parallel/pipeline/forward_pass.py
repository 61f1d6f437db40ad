"""What one stage computes of a micro-batch, in the graph."""

from collections.abc import Callable
from typing import Any

import keras

from easyscale import keras_internals
from easyscale.parallel.pipeline.cut import Cut

__all__ = ["ForwardPass", "Loss", "call", "outputs_of"]

# Takes the model's outputs in their structure, the flat list of labels, the numbers of the batch (a vector: the samples
# of the micro-batch, and of the batches of all pipelines, then `Batch.totals`), and what layers of all stages add to
# the loss; returns the loss, as a mean over the samples of the micro-batch.
Loss = Callable[[Any, list, Any, list], Any]


class ForwardPass:
    """The layers of one stage, called as the model calls them in training.

    Args:
        cut: The `Cut`.
        stage: Int. The number of the stage.
        loss: `Loss`, which the last stage calls.
        labels: Int. The number of labels, which come to the last stage.

    Attributes:
        inputs: List of the `KerasTensor`s that it takes.
        outputs: List of the `KerasTensor`s that other stages need; none of the last stage, which returns the loss.
        adds_loss: Bool. Whether its layers add to the loss, which a call has shown: then a number is its last output.
    """

    def __init__(self, cut: Cut, stage: int, loss: Loss, labels: int):
        self._part, self._loss, self._labels = cut.stages[stage], loss, labels
        self._graph, self._is_last = cut.graph, stage == len(cut.stages) - 1
        own = cut.graph.inputs if stage == 0 else []
        self.inputs = [*own, *(crossing.tensor for crossing in self._part.receives)]
        self.outputs = list({id(crossing.tensor): crossing.tensor for crossing in self._part.sends}.values())
        self._crosses = {id(tensor) for tensor in [*self.inputs, *self.outputs, *keras.tree.flatten(cut.graph.outputs)]}
        self.adds_loss = False

    def __call__(self, tensors: list) -> list:
        """Return what other stages need, or the loss, for a micro-batch.

        Args:
            tensors: The inputs. On the last stage labels follow, what each of the other stages has that adds to the
                loss, and the numbers of the batch.
        """
        known = dict(zip(map(id, self.inputs), tensors, strict=False))
        added = self._weight_losses()
        for node in self._part.nodes:
            call(node, known)
            self._check_masks(node, known)
            added += keras_internals.added_losses(node.operation)
        added = [keras.ops.cast(keras.ops.sum(loss), keras.config.floatx()) for loss in added]
        if self._is_last:
            others = tensors[len(self.inputs) :]
            *of_others, numbers = others[self._labels :]
            return [self._loss(outputs_of(self._graph, known), others[: self._labels], numbers, [*added, *of_others])]
        self.adds_loss = bool(added)
        return [*(known[id(tensor)] for tensor in self.outputs), *([sum(added)] if added else [])]

    def _check_masks(self, node: Any, known: dict[int, Any]) -> None:
        """Raise `ValueError` if a layer keeps a mask that the graph does not know of, and another stage needs it.

        A layer that does not support masks loses them, as Keras says; but not if it returns its input as it is.
        """
        for output in node.outputs:
            if keras_internals.mask_of(output) is not None:
                continue
            for tensor in node.input_tensors:
                is_masked = any(keras_internals.mask_of(one) is not None for one in (tensor, known[id(tensor)]))
                if is_masked and known[id(tensor)] is known[id(output)] and {id(tensor), id(output)} & self._crosses:
                    raise ValueError(
                        "a layer in a pipeline that returns its input as it is must say that it supports its mask. "
                        f"Received: layer '{node.operation.name}' where two stages meet. Set `self.supports_masking = "
                        "True` in its `__init__`"
                    )

    def _weight_losses(self) -> list:
        """What regularizers make of the weights that the stage trains."""
        regularized = [
            variable
            for variable in self._part.trainable_variables
            if getattr(variable, "regularizer", None) is not None
        ]
        return [variable.regularizer(variable) for variable in regularized]


def call(node: Any, known: dict[int, Any]) -> None:
    """Call a layer as a model does in training.

    Args:
        node: The call, of a `Graph`.
        known: Dict. The tensors so far, by the identity of the `KerasTensor` that each stands for. It gets the results.
    """
    args, kwargs = node.arguments.fill_in(known)
    results = keras_internals.in_training(node.operation)(*args, **kwargs)
    known |= dict(zip(map(id, node.outputs), keras.tree.flatten(results), strict=True))


def outputs_of(graph: keras_internals.Graph, known: dict[int, Any]) -> Any:
    """Return a model's outputs, in their structure and with their masks, as its own `call` does."""
    for tensor, mask in zip(keras.tree.flatten(graph.outputs), graph.masks, strict=True):
        if mask is not None:
            keras_internals.set_mask(known[id(tensor)], known[id(mask)])
    outputs = keras.tree.map_structure(lambda tensor: known[id(tensor)], graph.outputs)
    return outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs
