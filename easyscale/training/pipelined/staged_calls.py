"""`evaluate`, `predict` and calls of a model that was built in `scope()`: each rank has the weights of its stage."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale import keras_internals
from easyscale.communicator import Communicator
from easyscale.mesh import Mesh
from easyscale.parallel.pipeline.cut import Cut
from easyscale.parallel.pipeline.inference import Inference
from easyscale.training.pipelined.files import StagedFiles
from easyscale.training.pipelined.loss import numbers_of
from easyscale.training.pipelined.own_stage import OwnStage
from easyscale.training.without_xla import compile_without_xla

__all__ = ["StagedCalls", "tell"]


class StagedCalls:
    """Makes each rank call its own stage's layers when the script calls the model. All ranks of a pipeline must do so.

    Losses and metrics are computed on the last stage, the only one that has the outputs of an `evaluate`, and are sent
    to all at its end. The results of `predict`, and of the model itself, are on all ranks.

    Args:
        model: The model.
        cut: The `Cut`.
        mesh: The `Mesh`.
        own: The `OwnStage` of this rank.
        files: The `StagedFiles`.

    Attributes:
        is_evaluating: Bool. Whether an `evaluate` is in progress.
    """

    def __init__(self, model: keras.Model, cut: Cut, mesh: Mesh, own: OwnStage, files: StagedFiles):
        self._own, self._stages, self._is_chief = own, mesh["model"], mesh.communicator.is_chief
        self._inference = Inference(cut, mesh["model"], backends.get(), files.answer)
        self._whole = functools.partial(type(model).call, model)
        self.is_evaluating, self._tests = False, False
        for name, replacement in (("call", self._call), ("make_test_function", self._make_test_function)):
            object.__setattr__(model, name, functools.partial(replacement, model))
        self._model = model
        self._forget_functions()  # they were made for another cut
        compile_without_xla(model, self._is_chief)

    @contextlib.contextmanager
    def together(self, trains: bool) -> Iterator[None]:
        """Return a context in which all ranks call the model in the same order; errors are raised without wrapping.

        Args:
            trains: Bool. Whether this is in a `fit()`. If not, values loaded on a rank are sent where they are needed.
        """
        compile_without_xla(self._model, self._is_chief)  # it may have been compiled again, with no `fit()` since
        if not trains and self._own.settle():
            self._forget_functions()  # some of the weights that they use have been replaced
        with self._inference.explained():
            yield

    def _forget_functions(self) -> None:
        self._model.test_function = self._model.predict_function = None

    def evaluate(self, evaluate: Callable[[], Any]) -> Any:
        """Return the result of `evaluate()` on the last stage, on all stages."""
        self.is_evaluating = True
        try:
            result = evaluate()
        finally:
            self.is_evaluating = False
        # On other stages a list has another order: Keras's metrics have no names there.
        told = self._stages.all_gather_object(keras.tree.map_structure(lambda one: np.asarray(one).tolist(), result))
        return result if self._inference.is_last else told[-1]

    def step(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Return `step(data)`, a model's `test_step`, with the first stage's labels, on the last; else a dummy."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        leaves = keras.tree.flatten((y, sample_weight))
        came = iter(self._inference.begin(x, [leaf for leaf in leaves if leaf is not None]))
        if not self._inference.is_last:
            self._inference.forward(x, training=False, with_losses=True)
            return {"loss": keras.ops.zeros(())}  # a graph must return some tensor
        leaves = [None if leaf is None else next(came) for leaf in leaves]
        y, sample_weight = keras.tree.pack_sequence_as((y, sample_weight), leaves)
        self._tests = True
        try:
            return step(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))
        finally:
            self._tests = False

    def results(self, logs: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the last stage's `logs()`, on all stages."""
        return tell(self._stages, logs() if self._inference.is_last else {})

    def _make_test_function(self, model: keras.Model, force: bool = False) -> None:
        made = model.test_function
        type(model).make_test_function(model, force)
        if model.test_function is not made and not self._inference.is_last:
            model.test_function = functools.partial(_without_results, model.test_function)

    def _call(self, model: keras.Model, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if keras_internals.in_stateless_scope():  # Keras infers shapes
            return self._whole(inputs, training=training, mask=mask)
        if not self._tests:
            self._inference.begin(inputs)
        outputs, added = self._inference.forward(inputs, bool(training), with_losses=self._tests)
        if not self._tests:
            return self._inference.share(outputs)
        keras.layers.Layer.add_loss(model, keras.ops.cast(added, keras.config.floatx()))  # `Functional` overrides it
        return outputs


def _without_results(function: Callable[[Any], Any], data: Any) -> dict:
    function(data)
    return {}


def tell(stages: Communicator, results: Mapping[str, Any]) -> dict[str, Any]:
    """Send the results of the last stage's metrics to all stages of a pipeline; return them."""
    return stages.all_gather_object({name: value.tolist() for name, value in numbers_of(dict(results)).items()})[-1]
