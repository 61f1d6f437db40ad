"""What one stage computes of a micro-batch, in the graph."""

from collections.abc import Callable
from typing import Any

import keras

from easyscale import keras_internals
from easyscale.parallel.pipeline.cut import Cut

__all__ = ["ForwardPass", "Loss"]

# Takes the model's outputs in their structure, the flat list of labels, the numbers of samples of the micro-batch and
# of the batches of all pipelines, and what layers of all stages add to the loss; returns the loss, as a mean over the
# samples of the micro-batch.
Loss = Callable[[Any, list, Any, Any, list], Any]


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
        self._structure = cut.graph.outputs if stage == len(cut.stages) - 1 else None
        own = cut.graph.inputs if stage == 0 else []
        self.inputs = [*own, *(one.tensor for one in self._part.receives)]
        self.outputs = list({id(one.tensor): one.tensor for one in self._part.sends}.values())
        self.adds_loss = False

    def __call__(self, tensors: list) -> list:
        """Return what other stages need, or the loss, for a micro-batch.

        Args:
            tensors: The inputs. On the last stage labels follow, what each of the other stages has that adds to the
                loss, and the two numbers of samples.
        """
        known = dict(zip(map(id, self.inputs), tensors, strict=False))
        added = self._weight_losses()
        for node in self._part.nodes:
            args, kwargs = node.arguments.fill_in(known)
            results = keras_internals.in_training(node.operation)(*args, **kwargs)
            known |= dict(zip(map(id, node.outputs), keras.tree.flatten(results), strict=True))
            added += keras_internals.added_losses(node.operation)
        added = [keras.ops.cast(keras.ops.sum(loss), keras.config.floatx()) for loss in added]
        if self._structure is not None:
            outputs = keras.tree.map_structure(lambda tensor: known[id(tensor)], self._structure)
            others = tensors[len(self.inputs) :]
            *of_others, samples, all_samples = others[self._labels :]
            return [self._loss(outputs, others[: self._labels], samples, all_samples, [*added, *of_others])]
        _check_masks([(one, known[id(one)]) for one in self.outputs])
        self.adds_loss = bool(added)
        return [*(known[id(one)] for one in self.outputs), *([sum(added)] if added else [])]

    def _weight_losses(self) -> list:
        """What regularizers make of the weights that the stage trains."""
        regularized = [one for one in self._part.trainable_variables if getattr(one, "regularizer", None) is not None]
        return [one.regularizer(one) for one in regularized]


def _check_masks(crossing: list[tuple[Any, Any]]) -> None:
    for symbolic, tensor in crossing:
        if keras_internals.mask_of(tensor) is not None:
            raise ValueError(
                "what crosses a cut must have no mask. Received: one of "
                f"`{symbolic.name}`, as of an `Embedding(mask_zero=True)`. Cut behind the layers that use the mask"
            )
