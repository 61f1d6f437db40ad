"""Replacements for `fit`, `evaluate`, `predict` and `save` of Keras models under `easyscale launch --auto`.

They replace the methods on `keras.Model`, once, with the same signatures. The script calls them as usual on every rank,
and they do what the three lines of EasyScale would. A script that already has these lines is left alone.
"""

import atexit
import functools
import inspect
import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any

import keras

from easyscale import called
from easyscale import communicator as communicators
from easyscale.auto import data
from easyscale.auto.failing import failing_together
from easyscale.auto.files import Files
from easyscale.auto.moves import Moves
from easyscale.auto.predicting import deal
from easyscale.auto.report import Report
from easyscale.auto.tf_checkpoints import TensorFlowCheckpoints
from easyscale.callbacks import Distribute
from easyscale.keras_internals import OF_FIT, layers_of
from easyscale.optimizer import DistributedOptimizer
from easyscale.training.distribution import Distribution
from easyscale.training.parts import batch_normalization

__all__ = ["AutoModel", "install"]

_BESIDE = "evaluate() is of all workers, predict() returns all rows, and save() and Keras's callbacks write on rank 0"
_SAVING = ("save", "save_weights", "export")
_REPLACED = ("fit", "evaluate", "predict", *_SAVING, "train_on_batch")


def install(moves: Moves) -> None:
    """Replace the methods of Keras's models, and watch its optimizers. Let the chief move the files that it writes."""
    auto = AutoModel()
    moves.of_chief = auto.files
    for name in _REPLACED:
        original = getattr(keras.Model, name)
        setattr(keras.Model, name, _replaced(original, getattr(auto, name)))
    for module, name in itertools.product((keras.saving, keras.models), ("save_model", "save_weights")):
        if hasattr(module, name):
            setattr(module, name, _replaced(getattr(module, name), auto.save))
    feature_space: Any = keras.utils.FeatureSpace
    feature_space.save = _replaced(feature_space.save, auto.save)
    optimizer: Any = keras.optimizers.Optimizer
    optimizer.apply = _replaced(optimizer.apply, auto.apply)
    atexit.register(auto.end)


def _replaced(original: Callable, own: Callable) -> Callable:
    rank_process = os.getpid()
    first = next(iter(inspect.signature(original).parameters))  # a script may pass it as a keyword

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        owner, *others = args or (kwargs.pop(first),)
        if os.getpid() != rank_process:  # a process forked by the script trains on its own
            return original(owner, *others, **kwargs)
        return own(original, owner, *others, **kwargs)

    return replaced


class AutoModel:
    """Distributed versions of a Keras model's methods. Each receives the original method and the model."""

    def __init__(self) -> None:
        self._communicator = communicators.get()
        self._workers = self._communicator.workers
        self._report, self.files = Report(self._communicator), Files(self._communicator, lambda: self._depth > 0)
        self._checkpoints = TensorFlowCheckpoints(self._communicator)
        self._adopted: weakref.WeakSet = weakref.WeakSet()
        self._depth = 0  # nesting depth of running training methods
        self._has_trained = False
        self._has_skipped = False  # the current call of a model's `save` has recorded that it left it to the chief

    def fit(self, original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        """Train one model on all workers."""
        given = _named(original, model, args, kwargs)
        if self._is_scripts(model, given.get("callbacks")):
            return self._training(original, model, *args, **kwargs)
        given["callbacks"] = [*_listed(given.get("callbacks")), Distribute()]
        batch, size = "", given.get("batch_size")
        trained = given.get("x"), given.get("y"), given.get("sample_weight")
        if given.get("validation_split") and given.get("validation_data") is None and data.are_arrays(*trained):
            trained, held_out = data.split_off(*trained, given.pop("validation_split"))
            given["validation_data"] = held_out
        steps, shuffle = given.get("steps_per_epoch"), given.get("shuffle", True)
        divided, local = data.divide_trained(*trained, size, steps, shuffle, self._communicator)
        if local is not None:
            _check_fixed_batch(model, local)
            given["batch_size"] = local
            batch = f"; a batch of {local * self._workers} is {local} on each"
        elif data.are_arrays(*trained):
            given.pop("batch_size", None)
            given["shuffle"] = False
        given |= {"x": divided.x, "y": divided.y, "sample_weight": divided.sample_weight}
        if given.get("validation_data") is not None:
            given |= self._of_validation(
                given["validation_data"], given.get("validation_batch_size") or size, given.get("validation_steps")
            )
        self._adopt(model)
        self.files.compare_names(given["callbacks"])
        verb = "divided" if divided.is_part else "not divided"
        self._report.say(f"fit() trains one model on {self._workers} workers; {verb}: {divided.about}{batch}")
        self._report.say(_BESIDE)
        if layers := batch_normalization.unsynchronized(model):
            self._report.say(
                f"BatchNormalization ({', '.join(layers)}) uses each worker's part of a batch, so steps are not quite "
                "those of one process; on TensorFlow synchronized=True makes them so"
            )
        history = self._training(original, model, **given)
        if not self._depth:
            self.files.publish()
        return history

    def evaluate(self, original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on all workers, each on its part of the data; every worker returns the result for all data."""
        if model in self._adopted or self._is_scripts(model, kwargs.get("callbacks")):
            return original(model, *args, **kwargs)  # called from the instance's own `evaluate`, see `_adopt`
        self._adopt(model)
        return model.evaluate(*args, **kwargs)

    def _evaluate(self, inner: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        given = _named(keras.Model.evaluate, None, args, kwargs)
        without_optimizer = model.optimizer is None  # workers communicate through the optimizer
        if OF_FIT in given or without_optimizer or self._is_scripts(model, given.get("callbacks")):
            return inner(*args, **kwargs)
        arrays = given.get("x"), given.get("y"), given.get("sample_weight")
        divided, size, steps = data.divide_evaluated(
            *arrays, given.get("batch_size"), given.get("steps"), self._communicator
        )
        if not divided.is_part:
            return inner(**{**given, "x": divided.x})
        given |= {"x": divided.x, "y": divided.y, "sample_weight": divided.sample_weight}
        given |= {"batch_size": size, "steps": steps}
        given["callbacks"] = [*_listed(given.get("callbacks")), Distribute()]
        return inner(**given)

    def predict(self, original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        """Predict on all workers, each its part of the data; every worker returns all rows, in order."""
        given = _named(original, model, args, kwargs)
        if self._is_scripts(model, None):
            return original(model, *args, **kwargs)
        if not self._communicator.is_chief:
            given["verbose"] = 0
        if data.is_generator(given["x"]):
            self._report.say("predict() of a generator is not divided: each worker predicts all of it")
            return original(model, **given)
        if data.are_arrays(given["x"]):
            given["x"], *_, given["batch_size"] = data.seen(
                given["x"], None, None, given.get("batch_size"), given.pop("steps", None)
            )
        dealt = deal(given["x"], given.get("steps"), self._communicator)
        joined = None
        if dealt is not None:
            with failing_together(self._communicator):
                own = original(model, **{**given, "x": dealt.x, "steps": dealt.steps})
            joined = dealt.join(own)
        return original(model, **given) if joined is None else joined

    def save(self, original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        """Save on the chief. Other ranks wait for it here; in callbacks of a `fit()`, they wait when they read it."""
        if self._is_scripts(model, None):
            original(model, *args, **kwargs)
            return
        path = args[0] if args else kwargs.get("filepath")
        if self._depth:
            if self._communicator.is_chief:
                with self.files.writing(path):
                    original(model, *args, **kwargs)
            else:
                self._has_skipped = True
                self.files.skip(path)
            return
        name = os.path.abspath(path) if isinstance(path, (str, os.PathLike)) else None
        names = self._communicator.all_gather_object(name)
        with failing_together(self._communicator, of_chief=True):
            if self._communicator.is_chief:
                with self.files.writing(None):  # no message: the other ranks wait here
                    original(model, *args, **kwargs)
        if names[0] != name:  # such as a temporary folder, or a name that contains the time
            original(model, *args, **kwargs)
        elif all(other == name for other in names):
            self.files.note_saved(path)

    save_weights = export = save

    def _save(self, inner: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        self._has_skipped = False
        try:
            inner(*args, **kwargs)  # in a `fit()` only the chief writes, with the other ranks' optimizer state
        finally:
            if self._depth and not self._is_scripts(model, None):
                if not (self._communicator.is_chief or self._has_skipped):  # `inner` has left this model to the chief
                    self.files.skip(args[0] if args else kwargs.get("filepath"))
                Distribution.of(model).meet_in_hook()

    def train_on_batch(self, original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        """Report that a custom training loop is not divided."""
        self._say_own_loop()
        return self._training(original, model, *args, **kwargs)

    def apply(self, original: Callable, optimizer: keras.optimizers.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Report the same if the script calls the optimizer outside of `fit()`."""
        if not self._depth:
            self._say_own_loop()
        return original(optimizer, *args, **kwargs)

    def end(self) -> None:
        """At the end of the script, report if nothing was distributed."""
        if not (self._has_trained or self._is_scripts(None, None)):
            self._report.say(f"there was no fit(): each of {self._workers} workers has run the whole script by itself")

    def _training(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        self._has_trained = True
        self._depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            self._depth -= 1

    def _is_scripts(self, model: keras.Model | None, callbacks: Any) -> bool:
        """Return whether the script uses EasyScale itself."""
        found = any(isinstance(callback, Distribute) for callback in keras.tree.flatten(callbacks))
        optimizer = getattr(model, "optimizer", None)
        is_by_hand = isinstance(optimizer, DistributedOptimizer) and optimizer.is_by_hand
        found |= is_by_hand and model not in self._adopted
        if found:
            called.note("Distribute")
        if called.names:
            self._report.say("the script is left alone: it calls EasyScale itself")
        return bool(called.names)

    def _adopt(self, model: keras.Model) -> None:
        """Route the model's `evaluate` and `save` through this object before they reach `Distribution`."""
        if model not in self._adopted:
            Distribution.of(model)
            for name, own in (("evaluate", self._evaluate), *((name, self._save) for name in _SAVING)):
                if name in vars(model):
                    object.__setattr__(model, name, functools.partial(own, vars(model)[name], model))
            self._adopted.add(model)

    def _of_validation(self, validation: Any, batch_size: int | None, steps: int | None) -> dict[str, Any]:
        """Return the arguments that make `fit()` validate on this worker's part of the data."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(validation)
        divided, size, steps = data.divide_evaluated(x, y, sample_weight, batch_size, steps, self._communicator)
        part = (divided.x, divided.y, divided.sample_weight) if data.are_arrays(divided.x) else divided.x
        return {"validation_data": part, "validation_batch_size": size, "validation_steps": steps}

    def _say_own_loop(self) -> None:
        self._report.say("a training loop of the script's own is not divided: each worker makes all of its steps")


def _named(method: Callable, model: keras.Model | None, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Return the arguments of a Keras method by name, without the model."""
    _, *parameters = inspect.signature(method).parameters
    return {**dict(zip(parameters, args, strict=False)), **kwargs}


def _check_fixed_batch(model: keras.Model, local: int) -> None:
    """Raise if a stateful layer, such as an RNN, has the state of another number of samples than a worker gets."""
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or [])
    fixed = {tensor.shape[0] for tensor in inputs} - {None, local}
    if fixed and any(getattr(layer, "stateful", False) for layer in layers_of(model)):
        raise ValueError(
            "a worker's part of a batch must be the batch that stateful layers are built for. Received: parts of "
            f"{local} samples, and an input with a batch of {min(fixed)}. Build the model for {local} samples"
        )


def _listed(callbacks: Any) -> list:
    """Return callbacks as a list.

    Raises:
        ValueError: If they are a `CallbackList`, which is already bound to a model.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise ValueError(
            "`callbacks` must be a list of callbacks with --auto. Received: a CallbackList. Pass its `callbacks`, or "
            "leave --auto out and add the three lines"
        )
    return [callback for callback in keras.tree.flatten(callbacks) if callback is not None]
