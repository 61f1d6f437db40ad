"""Instrumentation of Keras by `easyscale verify`: records steps and removes randomness.

It records inside the graph: the weights after each update of a `DistributedOptimizer`, and the metrics at the end of
each step of a `fit()`. Randomness, which differs between one process and several, is switched off: `fit()` does not
shuffle, and layers that draw random numbers run in inference mode. So are half-precision types, whose rounding would
hide mistakes.
"""

import functools
import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.communicator import Communicator
from easyscale.errors import show_in_one_line
from easyscale.keras_internals import keep_float64, trained_by
from easyscale.layout.sliced import Sliced
from easyscale.layout.specs import Spec
from easyscale.optimizer import DistributedOptimizer
from easyscale.step.shared import Shared
from easyscale.training.callback_list import WRITERS
from easyscale.training.parts.batch_normalization import unsynchronized
from easyscale.training.pipelined.distribution import PipelineDistribution
from easyscale.training.pipelined.steps import PipelineSteps
from easyscale.verify.contents import describe, metrics_of, states_of
from easyscale.verify.pipelines import PipelineWatch
from easyscale.verify.recorder import Recorder

__all__ = ["watch"]


def watch(recorder: Recorder, seed: int, floatx: str) -> None:
    """Instrument Keras in this process from now on.

    Args:
        recorder: `Recorder`. Stores the records.
        seed: Int. Seed of Keras and TensorFlow, until the script sets its own.
        floatx: String. The default dtype. In float64, rounding errors, which optimizers such as Adam magnify, stay far
            below any mistake.
    """
    states = random.getstate(), np.random.get_state()  # the script may have seeded them already
    keras.utils.set_random_seed(seed)
    random.setstate(states[0])
    np.random.set_state(states[1])
    keras.config.set_floatx(floatx)
    keep_float64()
    watching = _Watch(recorder)
    for owner, name, replacement in (
        (DistributedOptimizer, "apply", watching.apply),
        (keras.Model, "fit", watching.fit),
        (PipelineSteps, "read", watching.pipeline.read),
        (PipelineDistribution, "end_step", watching.pipeline.end_step),
        (keras.Model, "save", watching.save),
        (keras.Model, "save_weights", watching.save),
        (keras.Model, "export", watching.save),
        (keras.layers.Layer, "__call__", watching.call_layer),
        (keras.config, "set_dtype_policy", watching.set_dtype_policy),
        (keras.mixed_precision, "set_dtype_policy", watching.set_dtype_policy),
        (keras.mixed_precision, "set_global_policy", watching.set_dtype_policy),
    ):
        setattr(owner, name, _replaced(getattr(owner, name), replacement))
    show_in_one_line()  # also in a single process that no launcher has started
    backends.get().take_out_chance(lambda: recorder.note("switched_off", "shuffling"))


def _replaced(original: Callable, replacement: Callable) -> Callable:
    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    return replaced


class _Stop(keras.callbacks.Callback):
    """Ends a `fit()` after enough of it has been recorded."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self._recorder = recorder

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._recorder.has_enough:
            self.model.stop_training = True


class _Watch:
    """Replacements for functions of Keras; `original` is the replaced one. Most run once, when a graph is traced."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._optimizers: list[DistributedOptimizer] = []
        self._model: keras.Model | None = None  # the model whose fit() is running
        self._in_step = False
        self._communicator: Communicator | None = None  # that of the last optimizer applied in this step
        self.pipeline = PipelineWatch(recorder)

    def apply(self, original: Callable, optimizer: DistributedOptimizer, *args: Any, **kwargs: Any) -> None:
        if self._model is not None and PipelineDistribution.trains(
            self._model
        ):  # a pipeline stage; `PipelineWatch` records its step
            return original(optimizer, *args, **kwargs)
        wrapper: Any = optimizer  # Keras has no type hints for these attributes
        self._communicator = communicator = wrapper.workers.communicator
        number = self._number(optimizer)
        if not self._in_step:
            _observe(communicator, self._recorder.end_if_complete)
        original(optimizer, *args, **kwargs)
        variables = trained_by(wrapper)
        self._recorder.describe_optimizer(number, wrapper.name, [variable.path for variable in variables])
        slices = wrapper.workers.gradients.slices.of(variables)
        _observe(communicator, lambda *values: self._recorder.update(number, *_wholes(values, slices)), variables)
        if self._model is not None and not self._in_step:  # a rank without data, taking part in the others' step
            self._end_step(self._model)

    def _number(self, optimizer: DistributedOptimizer) -> int:
        for number, known in enumerate(self._optimizers):
            if known is optimizer:
                return number
        self._optimizers.append(optimizer)
        return len(self._optimizers) - 1

    def fit(self, original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        bound = inspect.signature(original).bind(model, *args, **kwargs)
        if bound.arguments.get("shuffle", True):
            self._recorder.note("switched_off", "shuffling")
        bound.arguments["shuffle"] = False
        if isinstance(callbacks := bound.arguments.get("callbacks"), (list, tuple)):
            for writer in (callback for callback in callbacks if isinstance(callback, WRITERS)):
                self._recorder.note("switched_off", type(writer).__name__)
            bound.arguments["callbacks"] = [callback for callback in callbacks if not isinstance(callback, WRITERS)]
        if model.jit_compile:  # XLA cannot compile a graph that calls Python
            model.jit_compile, model.train_function = False, None
        if "_easyscale_watched" not in vars(model):
            object.__setattr__(model, "_easyscale_watched", True)  # bypasses Keras's tracking
            backends.get().steps.watch(model, self.train_step)
        callbacks = bound.arguments.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(_Stop(self._recorder))
        else:
            bound.arguments["callbacks"] = [*keras.tree.flatten(callbacks or []), _Stop(self._recorder)]
        if bound.arguments.get("validation_data") is not None:
            bound.arguments["validation_steps"] = 1  # enough to show that it runs
        outer, self._model = self._model, model
        self._recorder.begin_fit()
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            self._model = outer
            self._recorder.end_fit()

    def train_step(self, original: Callable, model: keras.Model, data: Any) -> dict:
        self._in_step, self._communicator = True, None
        try:
            logs = original(data)
        finally:
            self._in_step = False
        if self._communicator is not None:
            tensors = [tensor for tensor in keras.tree.flatten(data) if tensor is not None]
            if backends.get().are_rows(tensors):
                _observe(self._communicator, self._recorder.batch, tensors)
            self._end_step(model)
        return logs

    def _end_step(self, model: keras.Model) -> None:
        assert self._communicator is not None  # an optimizer has been applied
        for name in unsynchronized(model):
            self._recorder.note("unsynchronized", name)
        metrics, states = metrics_of(model), states_of(model)
        number = self._recorder.describe_model(
            [describe(metric) for metric in metrics], [variable.path for variable in states]
        )
        variables = [variable for metric in metrics for variable in metric.variables]
        record = functools.partial(self._recorder.end_step, number)
        _observe(self._communicator, record, [*variables, *states])

    def call_layer(self, original: Callable, layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        if _draws(layer):
            if "training" in inspect.signature(layer.call).parameters and not isinstance(layer, keras.Model):
                kwargs["training"] = False
                self._recorder.note("switched_off", f"dropout of {layer.name}" if _rates(layer) else layer.name)
            else:  # a custom layer, or a model
                self._recorder.note("random", layer.name)
        return original(layer, *args, **kwargs)

    def save(self, original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        self._recorder.note("switched_off", "saving")  # the model is hardly trained

    def set_dtype_policy(self, original: Callable, policy: str | keras.DTypePolicy) -> None:
        name = policy if isinstance(policy, str) else policy.name
        if "16" in name:
            self._recorder.note("switched_off", name)
        else:
            original(policy)


def _observe(communicator: Communicator, function: Callable, variables: Sequence = ()) -> None:
    """Make the step call `function(*values)` with the values of `variables` at this point.

    Outside of a graph the call is immediate. The calls of a graph, and its exchanges, run in the order in which they
    were traced.

    Args:
        communicator: The `Communicator` of those exchanges.
        function: Callable. Receives arrays that it must not keep: the backend owns their memory.
        variables: Variables, or tensors.
    """

    def call(*values: np.ndarray) -> list[np.int64]:
        function(*values)
        return [np.int64(0)]  # a result is needed to order the calls

    Shared.of(communicator, backends.get()).call(call, variables, [Spec((), np.dtype("int64"))])


def _wholes(values: Sequence[np.ndarray], slices: Sequence[Sliced | None]) -> list[np.ndarray]:
    """Return the values of weights, those that are slices gathered from all ranks. Collective."""
    return [value if sliced is None else sliced.collect(value) for value, sliced in zip(values, slices, strict=True)]


def _draws(layer: keras.layers.Layer) -> bool:
    """Return whether a layer, or a recurrent layer's cell, draws random numbers: has a seed generator and uses it."""
    owners = [vars(layer), vars(getattr(layer, "cell", layer))]
    has = any(isinstance(value, keras.random.SeedGenerator) for owner in owners for value in owner.values())
    rates = _rates(layer)
    return has and (not rates or any(rates))


def _rates(layer: keras.layers.Layer) -> list[float]:
    """Return the rates of a layer's additional dropout; none for `Dropout` itself."""
    return [getattr(layer, name) for name in ("dropout", "recurrent_dropout") if hasattr(layer, name)]
