"""The computation of one stage for a micro-batch, in the graph."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from easyscale import keras_internals
from easyscale.parallel.pipeline.cut import Cut

__all__ = ["ForwardPass", "Loss", "StageLayers", "call", "outputs_of", "summed", "weight_losses"]

# Takes the model's outputs in their structure, the flat list of labels, the numbers of the batch (a vector: the samples
# of the micro-batch, those of the batches of all pipelines, then `Batch.totals`), and the losses added by layers of all
# stages; returns the loss as a mean over the samples of the micro-batch.
Loss = Callable[[Any, list, Any, list], Any]


class StageLayers:
    """The layers of one stage, called in the same way as by the model.

    Args:
        cut: The `Cut`.
        stage: Int. The number of the stage.

    Attributes:
        inputs: List of the `KerasTensor`s that it takes.
        outputs: List of the `KerasTensor`s that other stages need.
        problem: String. An error in the results of a call, to be raised on all stages; `""` if there is none.
        under_way: Int. The number of calls of stages in progress in this process.
    """

    under_way = 0

    def __init__(self, cut: Cut, stage: int):
        self._nodes = cut.stages[stage].nodes
        own = cut.graph.inputs if stage == 0 else []
        self.inputs = [*own, *(crossing.tensor for crossing in cut.stages[stage].receives)]
        self.outputs = list({id(crossing.tensor): crossing.tensor for crossing in cut.stages[stage].sends}.values())
        self.problem = ""
        self._masks_in = [
            (crossing.tensor, tensor) for crossing in cut.stages[stage].receives for tensor in crossing.masks
        ]
        self._masks_out = {
            id(crossing.tensor): crossing.masks[0] for crossing in cut.stages[stage].sends if crossing.masks
        }
        self._crosses = {id(tensor) for tensor in [*self.inputs, *self.outputs, *keras.tree.flatten(cut.graph.outputs)]}

    def __call__(self, tensors: list, training: bool) -> tuple[dict[int, Any], list]:
        """Return all tensors, by the identity of the `KerasTensor`s, and the losses that the layers add.

        Args:
            tensors: One for each of `inputs`.
            training: Bool. Whether the layers are called in training mode.
        """
        known, added = dict(zip(map(id, self.inputs), tensors, strict=True)), []
        for mask, tensor in self._masks_in:
            keras_internals.set_mask(known[id(tensor)], known[id(mask)])
        StageLayers.under_way += 1
        try:
            for node in self._nodes:
                call(node, known, training)
                self._check_masks(node, known)
                added += keras_internals.added_losses(node.operation)
        finally:
            StageLayers.under_way -= 1
        for number, tensor in self._masks_out.items():
            if number not in known:  # a mask that is a layer's input is known, even for another stage's tensor
                known[number] = _mask_of(known[id(tensor)], tensor)
        self._look_at_types(known)
        return known, added

    def _look_at_types(self, known: dict[int, Any]) -> None:
        """Set `problem` if a crossing tensor has another type than its layer has declared."""
        sent = set(map(id, self.outputs))
        for node in self._nodes:
            for tensor in [output for output in node.outputs if id(output) in sent]:
                dtype = keras.backend.standardize_dtype(known[id(tensor)].dtype)
                if dtype != tensor.dtype:
                    self.problem = (
                        "what crosses a cut must be of the type that its layer says. Received: "
                        f"{dtype} of layer '{node.operation.name}', which was to be {tensor.dtype}. Cut at another "
                        "layer, or use `keras.ops` on tensors in the place of a `Lambda`"
                    )

    def _check_masks(self, node: Any, known: dict[int, Any]) -> None:
        """Raise `ValueError` if a layer keeps a mask that is missing in the graph, and another stage needs it.

        According to Keras a layer that does not support masks drops them; but not if it returns its input unchanged.
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


class ForwardPass:
    """The layers of one stage, called in the same way as by the model in training, and on the last stage the loss.

    Args:
        cut: The `Cut`.
        stage: Int. The number of the stage.
        loss: `Loss`, which the last stage calls.
        labels: Int. The number of labels, which the last stage receives.

    Attributes:
        inputs: List of the `KerasTensor`s that it takes.
        outputs: List of the `KerasTensor`s that other stages need; none of the last stage, which returns the loss.
        layers: `StageLayers`.
        adds_loss: Bool. Whether its layers add to the loss, known after a call: if so, the last output is a number.
    """

    def __init__(self, cut: Cut, stage: int, loss: Loss, labels: int):
        self._part, self._loss, self._labels = cut.stages[stage], loss, labels
        self._graph, self._is_last = cut.graph, stage == len(cut.stages) - 1
        self.layers = StageLayers(cut, stage)
        self.inputs, self.outputs = self.layers.inputs, self.layers.outputs
        self.adds_loss = False

    def __call__(self, tensors: list) -> list:
        """Return the tensors that other stages need, or the loss, for a micro-batch.

        Args:
            tensors: The inputs. On the last stage these are followed by the labels, the losses added by each other
                stage that has any, and the numbers of the batch.
        """
        own, others = tensors[: len(self.inputs)], tensors[len(self.inputs) :]
        of_weights = weight_losses(self._part.trainable_variables)
        known, of_layers = self.layers(own, training=True)
        added = summed([*of_weights, *of_layers])
        if self._is_last:
            *of_others, numbers = others[self._labels :]
            return [self._loss(outputs_of(self._graph, known), others[: self._labels], numbers, [*added, *of_others])]
        self.adds_loss = bool(added)
        return [*(known[id(tensor)] for tensor in self.outputs), *([sum(added)] if added else [])]


def _mask_of(value: Any, tensor: Any) -> Any:
    """Return a tensor's mask in the graph's dtype; all ones if a custom layer has removed it."""
    found, said = keras_internals.mask_of(value), keras_internals.mask_of(tensor)
    if found is None:
        return keras.ops.ones(keras.ops.shape(value)[: len(said.shape)], said.dtype)
    return keras.ops.cast(found, said.dtype)


def weight_losses(variables: Sequence[keras.Variable]) -> list:
    """Return the regularization losses of weights."""
    return [variable.regularizer(variable) for variable in variables if variable.regularizer is not None]


def summed(added: Sequence[Any]) -> list:
    """Return added losses as scalars of the dtype of losses."""
    return [keras.ops.cast(keras.ops.sum(loss), keras.config.floatx()) for loss in added]


def call(node: Any, known: dict[int, Any], training: bool = True) -> None:
    """Call a layer as a model does.

    Args:
        node: The call, of a `Graph`.
        known: Dict. The tensors so far, by the identity of their `KerasTensor`s. The results are added to it.
        training: Bool. Whether it is called in training mode. Defaults to `True`.
    """
    args, kwargs = node.arguments.fill_in(known)
    results = keras_internals.with_training(node.operation, training)(*args, **kwargs)
    known |= dict(zip(map(id, node.outputs), keras.tree.flatten(results), strict=True))


def outputs_of(graph: keras_internals.Graph, known: dict[int, Any]) -> Any:
    """Return a model's outputs, in their structure and with their masks, as its own `call` does."""
    for tensor, mask in zip(keras.tree.flatten(graph.outputs), graph.masks, strict=True):
        if mask is not None:
            keras_internals.set_mask(known[id(tensor)], known[id(mask)])
    outputs = keras.tree.map_structure(lambda tensor: known[id(tensor)], graph.outputs)
    return outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs
