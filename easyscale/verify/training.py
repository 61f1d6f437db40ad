"""What `easyscale verify` does to Keras in a process that it watches: it looks on, and leaves nothing to chance.

It looks on inside the graph: after each update of a `DistributedOptimizer` at the weights, and at the end of each step
of a `fit()` at the metrics. What is random by nature, and so differs between one process and several, is switched off:
`fit()` does not shuffle, and layers that draw random numbers act as they do outside of training. Half types, whose
rounding would hide mistakes, are not used either.
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
    """Watch all that Keras does in this process from now on.

    Args:
        recorder: `Recorder`. Writes down what is seen.
        seed: Int. For the random numbers of Keras and TensorFlow, until the script seeds them itself.
        floatx: String. The dtype of what the script gives none. In float64 rounding, which optimizers such as Adam
            magnify, stays far below any mistake.
    """
    states = random.getstate(), np.random.get_state()  # which the script may have set already
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
    show_in_one_line()  # also in one process, which no launcher has started
    backends.get().take_out_chance(lambda: recorder.note("switched_off", "shuffling"))


def _replaced(original: Callable, replacement: Callable) -> Callable:
    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    return replaced


class _Stop(keras.callbacks.Callback):
    """Ends a `fit()` of which enough has been recorded."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self._recorder = recorder

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._recorder.has_enough:
            self.model.stop_training = True


class _Watch:
    """What replaces Keras's; `original` is what it replaces. Much of it runs once, when a graph is traced."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._optimizers: list[DistributedOptimizer] = []
        self._model: keras.Model | None = None  # whose fit() is running
        self._in_step = False
        self._communicator: Communicator | None = None  # of the optimizer that was applied last in this step
        self.pipeline = PipelineWatch(recorder)

    def apply(self, original: Callable, optimizer: DistributedOptimizer, *args: Any, **kwargs: Any) -> None:
        if self._model is not None and PipelineDistribution.trains(
            self._model
        ):  # a stage's: its step is recorded as a whole
            return original(optimizer, *args, **kwargs)
        wrapper: Any = optimizer  # Keras does not type what it has
        self._communicator = communicator = wrapper.workers.communicator
        number = self._number(optimizer)
        if not self._in_step:
            _observe(communicator, self._recorder.end_if_complete)
        original(optimizer, *args, **kwargs)
        variables = trained_by(wrapper)
        self._recorder.describe_optimizer(number, wrapper.name, [variable.path for variable in variables])
        slices = wrapper.workers.gradients.slices.of(variables)
        _observe(communicator, lambda *values: self._recorder.update(number, *_wholes(values, slices)), variables)
        if self._model is not None and not self._in_step:  # a rank without data takes part in the others' step
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
        if model.jit_compile:  # XLA cannot compile a graph that Python looks into
            model.jit_compile, model.train_function = False, None
        if "_easyscale_watched" not in vars(model):
            object.__setattr__(model, "_easyscale_watched", True)  # past Keras, which would track it
            backends.get().steps.watch(model, self.train_step)
        callbacks = bound.arguments.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(_Stop(self._recorder))
        else:
            bound.arguments["callbacks"] = [*keras.tree.flatten(callbacks or []), _Stop(self._recorder)]
        if bound.arguments.get("validation_data") is not None:
            bound.arguments["validation_steps"] = 1  # as little as shows that it runs
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
            else:  # nothing of Keras's own
                self._recorder.note("random", layer.name)
        return original(layer, *args, **kwargs)

    def save(self, original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        self._recorder.note("switched_off", "saving")  # of a model that is hardly trained

    def set_dtype_policy(self, original: Callable, policy: str | keras.DTypePolicy) -> None:
        name = policy if isinstance(policy, str) else policy.name
        if "16" in name:
            self._recorder.note("switched_off", name)
        else:
            original(policy)


def _observe(communicator: Communicator, function: Callable, variables: Sequence = ()) -> None:
    """Have the step call `function(*values)` with the values that `variables` have at this place.

    Outside of a graph it is called at once. All calls of a graph come in the order in which they were traced, its
    exchanges among them.

    Args:
        communicator: The `Communicator` of those exchanges.
        function: Callable. Gets arrays that it must not keep: their memory is the backend's.
        variables: Variables, or tensors.
    """

    def call(*values: np.ndarray) -> list[np.int64]:
        function(*values)
        return [np.int64(0)]  # the order of calls hangs on what they return

    Shared.of(communicator, backends.get()).call(call, variables, [Spec((), np.dtype("int64"))])


def _wholes(values: Sequence[np.ndarray], slices: Sequence[Sliced | None]) -> list[np.ndarray]:
    """Return values of weights with those whole that are slices, which all ranks put together."""
    return [value if sliced is None else sliced.collect(value) for value, sliced in zip(values, slices, strict=True)]


def _draws(layer: keras.layers.Layer) -> bool:
    """Whether a layer draws random numbers: it or, in a recurrent layer, its cell has a generator and a use for it."""
    owners = [vars(layer), vars(getattr(layer, "cell", layer))]
    has = any(isinstance(value, keras.random.SeedGenerator) for owner in owners for value in owner.values())
    rates = _rates(layer)
    return has and (not rates or any(rates))


def _rates(layer: keras.layers.Layer) -> list[float]:
    """The rates of the dropout that a layer has beside what it is for; of a `Dropout` none."""
    return [getattr(layer, name) for name in ("dropout", "recurrent_dropout") if hasattr(layer, name)]
