"""The functions that Keras calls for each step on JAX, with a state that it has taken out of the model."""

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import jax
import keras

from easyscale import keras_internals
from easyscale.backend import keras_steps
from easyscale.backend.jax.foreign_calls import why_not
from easyscale.backend.jax.graph import Graph, holding
from easyscale.backend.jax.host_calls import is_tracing
from easyscale.backend.jax.variables import set_values, traced_values_of
from easyscale.layout.specs import Variable
from easyscale.optimizers.nested import all_variables

__all__ = ["KerasSteps", "is_own"]


def is_own(model: keras.Model, name: str) -> bool:
    """Return whether a model's `train_step` or `test_step` is not Keras's."""
    return getattr(type(model), name) is not getattr(keras.Model, name)


def _kinds_of(model: keras.Model, trains: bool) -> list[Callable[[], Sequence[Variable]]]:
    """Return functions that list a model's variables, in the order in which Keras passes their values to a step."""
    kinds: list[Callable[[], Sequence[Variable]]] = [
        lambda: model.trainable_variables,
        lambda: model.non_trainable_variables,
        lambda: model.metrics_variables,
    ]
    if trains:
        kinds.insert(2, lambda: model.optimizer.variables)
    return kinds


class LiveStep:
    """A model's `train_step` or `test_step`, called with a state and data as Keras does, or with data alone.

    With data alone it reads and changes variables, as steps do on other backends.

    Args:
        model: The model.
        own: Its own method, of a state and data.
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
        self._passes = Graph(self._pass)

    def forget(self) -> None:
        """Discard everything compiled, because the model has changed."""
        self._passes.forget()

    def __call__(self, *given: Any) -> Any:
        if len(given) > 1:
            return self._with_state(*given)
        return self._step(*given) if self._watch is None else self._watch(self._step, self._model, *given)

    def _with_state(self, *given: Any) -> Any:
        optimizer = getattr(self._model, "optimizer", None)
        if self._trains and optimizer is not None and not optimizer.built:  # Keras has built only its inner optimizer
            optimizer.build(self._model.trainable_variables)
        return self._own(*given)

    def _step(self, data: Any) -> Any:
        if is_own(self._model, "train_step" if self._trains else "test_step"):
            kinds = [list(variables()) for variables in _kinds_of(self._model, self._trains)]
            logs, state = self._own(tuple(map(traced_values_of, kinds)), data)
            for variables, values in zip(kinds, state, strict=True):
                _assign(variables, values)
            return logs
        # A whole step is being compiled, or none is to be, or only what is between two exchanges can be.
        compute = self._pass if is_tracing() or self._model.run_eagerly else self._passes
        logs, gradients = compute(data)
        if self._trains:
            self._model.optimizer.apply(gradients, self._model.trainable_variables)
        return logs

    def _pass(self, data: Any) -> tuple[Any, list]:
        """Return the logs and the gradients of the trained variables; assign moving statistics and metrics."""
        model, batch = self._model, keras.utils.unpack_x_y_sample_weight(data)
        kinds = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
        trained, moved, counted = map(traced_values_of, kinds)
        optimizer = model.optimizer if self._trains else None
        scale = {} if optimizer is None else {"optimizer_variables": traced_values_of(optimizer.variables)}
        others = [] if optimizer is None else all_variables(optimizer)  # nested ones included: they may scale the loss

        def loss_of(trained: list) -> tuple[Any, tuple]:
            return model.compute_loss_and_updates(trained, moved, counted, *batch, training=self._trains, **scale)

        with holding(others):
            if self._trains:
                (_, (loss, predicted, moved, counted)), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
            else:
                gradients, (_, (loss, predicted, moved, counted)) = [], loss_of(trained)
        logs, counted = keras_internals.count_in_metrics(model, counted, loss, batch, predicted)
        _assign([*kinds[1], *kinds[2]], [*moved, *counted])
        return logs, gradients


def _assign(variables: Sequence[Variable], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class _Values(Sequence):
    """The values of a model's variables, read when they are used: callbacks may change them between two steps."""

    def __init__(self, variables: Callable[[], Sequence[Variable]]):
        self._variables = variables

    def __len__(self) -> int:
        return len(self._variables())

    def __getitem__(self, index: Any) -> Any:
        return keras_internals.native_of(self._variables()[index])

    def __iter__(self) -> Iterator:
        return map(keras_internals.native_of, self._variables())


class _Steps:
    """A function of an iterator over batches that runs `steps_per_execution` steps of a model.

    A step is compiled as a whole where compiled code can call Python, through which workers exchange. Not if this
    process may also serve: a call that waits for its own server keeps the server's update from running, since XLA has
    one thread for each core.
    """

    def __init__(self, model: keras.Model, step: Callable[[Any], Any]):
        self._model, self._step = model, step
        self._graph = Graph(step)

    def __call__(self, iterator: Iterator) -> Any:
        steps = self._model.steps_per_execution
        serves = getattr(self._model.optimizer, "is_served", False)
        is_whole = why_not() is None and not (serves or self._model.run_eagerly)
        batches = keras_internals.batch_by_batch(iterator)
        run: Callable[[Any], Any] = self._graph if is_whole else self._step
        logs = run(next(batches))
        for data in islice(batches, steps - 1):
            logs = run(data)
        return logs


class KerasSteps(keras_steps.KerasSteps):
    """Replaces a model's own steps by `LiveStep`s, where Keras would compile a function of a state."""

    def method_of(self, model: keras.Model, name: str) -> Callable[..., Any]:
        own = getattr(model, name)
        if isinstance(own, LiveStep) or name not in ("train_step", "test_step"):
            return own
        return LiveStep(model, own, name == "train_step")

    def train_function(self, model: keras.Model) -> Callable[[Iterator], Any]:
        return _Steps(model, model.train_step)

    def test_function(self, model: keras.Model) -> Callable[..., Any]:
        return self.called_by_keras(model, _Steps(model, model.test_step))

    def make_train_function(self, model: keras.Model, make: Callable[[], Any], force: bool) -> None:
        if model.train_function is None or force:
            model.train_function = self.called_by_keras(model, self.train_function(model))

    def called_by_keras(self, model: keras.Model, function: Callable[[Iterator], Any]) -> Callable[..., Any]:
        """Turn a function of an iterator, which uses variables, into one of a state and an iterator for Keras.

        State taken out of the model is put back, and stays there, so that changes by callbacks take effect.
        """
        own: tuple[_Values, ...] = ()

        def call(state: tuple, iterator: Iterator) -> tuple[Any, tuple]:
            nonlocal own
            if not own or state[0] is not own[0]:  # Keras has taken it from the model's variables
                kinds = _kinds_of(model, len(state) == 4)
                for variables, values in zip(kinds, state, strict=True):
                    set_values(list(variables()), values)
                own = tuple(map(_Values, kinds))
            try:
                return function(iterator), own
            except BaseException:  # also at the end of the data
                keras_internals.leave_state_in(model)
                raise

        return call

    def renew(self, model: keras.Model) -> None:
        """Discard what is compiled, and wrap the steps again to force a retrace: JAX caches by function identity."""
        for name in ("train_step", "test_step"):
            if isinstance(step := vars(model).get(name), functools.partial):
                for part in step.args:
                    if isinstance(part, LiveStep):
                        part.forget()
                object.__setattr__(model, name, functools.partial(step.func, *step.args))

    def watch(self, model: keras.Model, watch: Callable[[Callable[[Any], Any], Any, Any], Any]) -> None:
        step = LiveStep(model, model.train_step, trains=True, watch=watch)
        make = functools.partial(self._make_alone, model)
        for name, own in (("train_step", step), ("make_train_function", make)):
            object.__setattr__(model, name, own)
        model.train_function = None

    def _make_alone(self, model: keras.Model, force: bool = False) -> None:
        self.make_train_function(model, lambda: None, force)
