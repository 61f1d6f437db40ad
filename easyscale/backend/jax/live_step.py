"""A model's own step, which changes variables in place; its computations are compiled."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras

from easyscale import keras_internals
from easyscale.backend.jax import questions
from easyscale.backend.jax.questions import Question
from easyscale.backend.jax.variables import given_away, holding, set_values, values_of
from easyscale.layout.specs import Variable
from easyscale.optimizers.nested import all_variables

__all__ = ["LiveStep"]


class _Variables(NamedTuple):
    """The variables of a model and its optimizer, by their role in a step."""

    trained: list[Variable]
    moved: list[Variable]
    counted: list[Variable]
    listed: list[Variable]  # the optimizer's, as listed by Keras
    others: list[Variable]  # all of the optimizer's, nested ones included: they may scale the loss

    @classmethod
    def of(cls, model: keras.Model) -> "_Variables":
        optimizer = getattr(model, "optimizer", None)
        listed = [] if optimizer is None else list(optimizer.variables)
        others = [] if optimizer is None else all_variables(optimizer)
        return cls(
            list(model.trainable_variables),
            list(model.non_trainable_variables),
            list(model.metrics_variables),
            listed,
            others,
        )

    def values(self) -> list[list]:
        return [values_of(kind) for kind in self]


class _Passes:
    """The compiled passes of a model's step, for training or evaluation, through batches of one shape.

    Args:
        model: The model.
        variables: Its `_Variables`.
        trains: Bool. Whether there is a backward pass.
        batch: A batch, for its shapes.
    """

    def __init__(self, model: keras.Model, variables: _Variables, trains: bool, batch: tuple):
        self._model, self._variables, self._trains = model, variables, trains
        asked: list[Question] = []

        def look(*given: Any) -> list:
            asked[:] = self._ask(*given)
            return [(question.vector, question.fingerprint) for question in asked]

        jax.eval_shape(look, variables.values(), batch)
        self._totals = [question.total for question in asked]
        compiles: Callable[[Callable], Callable] = (lambda function: function) if model.run_eagerly else jax.jit
        self._questions = compiles(look)
        self._passes = self._run if model.run_eagerly else jax.jit(self._run, donate_argnums=0, keep_unused=True)

    def __call__(self, batch: tuple, place: list) -> tuple[Any, list]:
        """Return the logs and the gradients of the trained variables; set moving statistics and metrics.

        Args:
            batch: The batch.
            place: Gradients of an earlier step, whose memory is reused for these: new memory costs as much as a copy.
        """
        values, answers = self._variables.values(), []
        if self._totals:
            asked = self._questions(values, batch)
            answers = [total(*question) for total, question in zip(self._totals, asked, strict=True)]
        logs, gradients, moved, counted = self._passes(place, values, batch, answers)
        set_values(self._variables.moved, moved)
        set_values(self._variables.counted, counted)
        return logs, gradients

    def _ask(self, values: list[list], batch: tuple) -> list[Question]:
        with questions.recording() as asked:
            _, (loss, predicted, _, counted) = self._loss(values[0], values, batch)
            keras_internals.count_in_metrics(self._model, counted, loss, batch, predicted)
        return asked

    def _run(self, place: list, values: list[list], batch: tuple, answers: Sequence) -> tuple:
        with questions.answering(answers):
            if self._trains:
                of_loss = jax.value_and_grad(self._loss, has_aux=True)
                (_, (loss, predicted, moved, counted)), gradients = of_loss(values[0], values, batch)
            else:
                gradients = []
                _, (loss, predicted, moved, counted) = self._loss(values[0], values, batch)
            logs, counted = keras_internals.count_in_metrics(self._model, counted, loss, batch, predicted)
        return logs, gradients, moved, counted

    def _loss(self, trained: list, values: list[list], batch: tuple) -> tuple[Any, tuple]:
        _, moved, counted, listed, others = values
        scale = {"optimizer_variables": listed} if self._trains else {}
        with holding(self._variables.others, others):
            return self._model.compute_loss_and_updates(trained, moved, counted, *batch, training=self._trains, **scale)


class LiveStep:
    """A model's `train_step` or `test_step`, called with a state and data as Keras does, or with data alone.

    With data alone it updates variables instead of returning their new values. Between the compiled passes and the
    update of weights, workers exchange gradients outside of compiled code.

    Args:
        model: The model.
        own: Its own method.
        trains: Bool. Whether that is `train_step`.
        watch: Function. `watch(step, model, data)` runs a step on data alone, by calling `step(data)`. Defaults to
            `None`: the step is called directly.
    """

    def __init__(
        self,
        model: keras.Model,
        own: Callable[..., Any],
        trains: bool,
        watch: Callable[[Callable[[Any], Any], keras.Model, Any], Any] | None = None,
    ):
        self._model, self._own, self._trains, self._watch = model, own, trains, watch
        self._passes: dict[tuple, _Passes] = {}
        self._known: tuple[int, ...] = ()
        self._held: tuple = ()  # keeps the objects with these ids alive: an id may be reused
        self._gradients: list[jax.Array] = []  # of the previous step

    def release(self) -> None:
        """Release the gradients of the last step, whose memory the next step would reuse."""
        self._gradients = []

    def __call__(self, *given: Any) -> Any:
        if len(given) > 1:
            return self._own_step(*given)
        return self._step(*given) if self._watch is None else self._watch(self._step, self._model, *given)

    def _own_step(self, *given: Any) -> Any:
        optimizer = getattr(self._model, "optimizer", None)
        if self._trains and optimizer is not None and not optimizer.built:  # Keras has built only its inner optimizer
            optimizer.build(self._model.trainable_variables)
        return self._own(*given)

    def _step(self, data: Any) -> Any:
        model, batch = self._model, keras.utils.unpack_x_y_sample_weight(data)
        variables = _Variables.of(model)
        known = (id(model.loss), model.run_eagerly, *(id(variable) for kind in variables for variable in kind))
        if known != self._known:
            self._known, self._held, self._passes = known, (model.loss, variables), {}
            self.release()
        tensors, structure = jax.tree.flatten(batch)
        key = structure, *((tensor.shape, str(tensor.dtype)) for tensor in tensors)
        if key not in self._passes:
            self._passes[key] = _Passes(model, variables, self._trains, batch)
        if self._trains and not self._gradients:
            self._gradients = [jnp.zeros_like(value) for value in values_of(variables.trained)]
        place, self._gradients = given_away(self._gradients), []
        logs, self._gradients = self._passes[key](batch, place)
        if self._trains:
            model.optimizer.apply(self._gradients, variables.trained)
        return logs
