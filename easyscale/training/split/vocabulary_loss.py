"""Loss and accuracy of a model whose last layer is split by vocabulary: its logits are never gathered."""

import functools
from typing import Any

import keras

from easyscale.keras_internals import build_compiled, graph_of, mask_of, set_mask
from easyscale.parallel.split.kinds import Vocabulary
from easyscale.training.keras_fit import is_overridden

__all__ = ["VocabularyLoss"]

_METHODS = ("train_step", "test_step", "compute_loss", "compute_metrics")


class VocabularyLoss:
    """Makes the loss and the accuracies of a model work on slices of its logits while the layer is split.

    Sample weights, class weights, masks, `ignore_class` and the reduction remain those of the loss: only its
    computation from labels and logits is replaced.

    Args:
        model: The model, compiled.
        kind: `Vocabulary`. Its last layer.

    Raises:
        ValueError: If anything besides the loss and accuracies needs the logits.
    """

    def __init__(self, model: keras.Model, kind: Vocabulary):
        self._model, self._kind = model, kind
        self._check_model()
        self._loss, self._metrics = self._compiled()
        self._matches: Any = None  # of the last call of the loss

    def _refuse(self, rule: str, received: str, remedy: str = "Split it by columns") -> ValueError:
        return ValueError(f"{rule}. Received: '{self._kind.layer.name}' {received}. {remedy}")

    def _check_model(self) -> None:
        layer, graph = self._kind.layer, graph_of(self._model)
        rule = "a layer that is split by vocabulary must be the only output of a Sequential or Functional model"
        if graph is None:
            raise self._refuse(rule, f"of {type(self._model).__name__} '{self._model.name}'")
        calls = [node for node in graph.nodes if node.operation is layer]
        if len(calls) != 1 or graph.outputs is not calls[0].outputs[0]:
            raise self._refuse(rule, "that is not, or in another model")
        if any(tensor is graph.outputs for node in graph.nodes for tensor in node.input_tensors):
            raise self._refuse(rule, "whose output goes to another layer as well")
        for name in _METHODS:
            if is_overridden(self._model, name):
                rule = "a model whose last layer is split by vocabulary must be trained by Keras's own step"
                raise self._refuse(rule, f"of {type(self._model).__name__}, which has its own `{name}`")

    def _compiled(self) -> tuple[keras.losses.Loss, list[keras.metrics.Metric]]:
        losses, metrics = build_compiled(self._model)
        is_softmax = self._kind.layer.activation is keras.activations.softmax
        rule = (
            "the loss of a layer that is split by vocabulary must be `SparseCategoricalCrossentropy`, with "
            f"`from_logits={not is_softmax}`, as its activation is {'softmax' if is_softmax else 'linear'}"
        )
        for loss in losses:
            is_own = type(loss).__module__.startswith("keras.")
            if not is_own or getattr(loss, "fn", None) is not keras.losses.sparse_categorical_crossentropy:
                raise self._refuse(rule, f"with {type(loss).__name__} '{loss.name}'")
            if loss.get_config().get("from_logits", False) is is_softmax:
                raise self._refuse(rule, f"with from_logits={is_softmax}", "Compile the model with the other")
        if len(losses) != 1:
            raise self._refuse(rule, f"with {len(losses)} losses")
        for metric in metrics:
            if type(metric) is not keras.metrics.SparseCategoricalAccuracy:
                rule = "a metric of a layer that is split by vocabulary must be 'accuracy': others need whole logits"
                raise self._refuse(rule, f"with {type(metric).__name__} '{metric.name}'", "Leave it out of `metrics`")
        return losses[0], metrics

    def begin(self) -> None:
        """Make the loss and the metrics work on slices. The layer's output is only a placeholder."""
        self._loss, self._metrics = self._compiled()
        object.__setattr__(self._loss, "call", self._call)
        for metric in self._metrics:
            object.__setattr__(metric, "update_state", functools.partial(self._update, metric))

    def end(self) -> None:
        """Restore the loss and the metrics."""
        vars(self._loss).pop("call", None)
        for metric in self._metrics:
            vars(metric).pop("update_state", None)
        self._matches = None

    def _call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the cross entropy of each label."""
        if len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == 1:
            y_true = keras.ops.squeeze(y_true, -1)
        labels, ignored = keras.ops.cast(y_true, "int32"), self._loss.get_config().get("ignore_class")
        known = None if ignored is None else keras.ops.not_equal(labels, ignored)
        losses, best = self._kind.losses(labels if known is None else keras.ops.where(known, labels, 0), y_pred)
        self._matches = keras.ops.cast(keras.ops.equal(best, labels), losses.dtype)
        if known is not None:
            losses = keras.ops.where(known, losses, 0.0)
            set_mask(losses, known)
        return losses

    def _update(self, metric: keras.metrics.Metric, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Count matches, as predictions of two classes of which the first is correct."""
        matches = keras.ops.stop_gradient(self._matches)
        classes = keras.ops.stack([matches, 1.0 - matches], axis=-1)
        if (mask := mask_of(y_pred)) is not None:
            set_mask(classes, mask)
        return type(metric).update_state(metric, keras.ops.zeros_like(matches), classes, sample_weight)
