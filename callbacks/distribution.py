"""What a model does differently when it is trained by many workers.

Keras offers a callback no place to stand before the others, nor inside a step. So a few of the model's methods are
replaced on the instance, once, and do more than before while `Distribute` is at work: `train_step`, `evaluate` and
`get_compile_config`, which are public, and `_get_metrics_result_or_logs`, through which the logs of every epoch go on
their way to the callbacks.
"""

import functools
from collections.abc import Callable

import keras
import numpy as np

from easyscale.optimizer import DistributedOptimizer

__all__ = ["Distribution"]


class Distribution:
    """The distributed training of one model. Use `Distribution.of(model)`.

    Attributes:
        size: Int. The number of workers.
        rank: Int. This worker's number.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._optimizers: list[DistributedOptimizer] = []
        self._made: list[DistributedOptimizer] = []  # those of them that were not wrapped by hand
        self._training = False  # inside a fit() that has the Distribute callback
        self._evaluating = []  # for each evaluate() under way: whether it is the validation of fit()
        self._rehearsed = False
        for name in ("train_step", "evaluate", "get_compile_config", "_get_metrics_result_or_logs"):
            setattr(model, name, functools.partial(getattr(self, name), getattr(model, name)))

    @classmethod
    def of(cls, model: keras.Model) -> "Distribution":
        """Return the model's distribution; make it the first time."""
        if "_easyscale" not in vars(model):
            object.__setattr__(model, "_easyscale", cls(model))  # past Keras, which would track it
        return model._easyscale

    @property
    def _workers(self) -> object:
        return self._optimizers[0].workers

    @property
    def rank(self) -> int:
        return self._workers.communicator.rank

    @property
    def size(self) -> int:
        return self._workers.communicator.size

    def wrap_optimizers(self, options: dict) -> None:
        """Make every optimizer among the model's attributes a `DistributedOptimizer` with these options."""
        found = {
            name: value for name, value in vars(self._model).items() if isinstance(value, keras.optimizers.Optimizer)
        }
        if not found:
            raise ValueError("the model must be compiled with an optimizer. Call `model.compile(...)` before `fit()`")
        self._optimizers = []
        for name, value in sorted(found.items()):
            by_hand = not any(value is one for one in self._made)
            wrapped = _wrap(value, options, by_hand)
            if wrapped is not value:
                self._made.append(wrapped)
                setattr(self._model, name, wrapped)
                self._model.train_function = None  # it was made with the old one
            if not any(wrapped is other for other in self._optimizers):
                self._optimizers.append(wrapped)
        for optimizer in self._optimizers:
            optimizer.workers  # noqa: B018  (all ranks connect now, in one order)
            optimizer.starts_equal = False  # `begin` sees to it, for the whole model

    def begin(self) -> None:
        """Start a `fit()`: equal workers, and errors that say what happened."""
        self._training = self.size > 1
        if not self._training:
            return
        optimizer = getattr(self._model, "optimizer", None)
        if self._model.built and optimizer is not None and not optimizer.built and self._model.trainable_variables:
            optimizer.build(self._model.trainable_variables)
        self._rehearsed = False
        self._start_equal()
        if not hasattr(self._model.train_function, "explained"):
            self._model.train_function = self._explained(self._model.train_function)

    def end(self) -> None:
        """End a `fit()`."""
        self._training = False

    def _explained(self, train_function: Callable) -> Callable:
        @functools.wraps(train_function)
        def explained(iterator: object) -> object:
            with self._workers.explained(on_failure=self.end):
                self._build(iterator)
                return train_function(iterator)

        explained.explained = True
        return explained

    def _build(self, iterator: object) -> None:
        """Build a model that would otherwise be built by its first step: its variables have to be equal before."""
        if not self._rehearsed and self._training:
            self._rehearsed = True
            if not self._model.built or not all(layer.built for layer in self._model.layers):
                self._workers.rehearse(self._model.train_step, iterator)
                self._start_equal()

    def _start_equal(self) -> None:
        variables = list(self._model.weights)
        for optimizer in self._optimizers:
            variables += optimizer.variables
        self._workers.start_equal(variables)

    # What replaces the model's own methods; `original` is the one replaced.

    def train_step(self, original: Callable, data: object) -> dict:
        if not self._training:
            return original(data)
        weight = self._workers.count_samples(keras.tree.flatten(data))
        for optimizer in self._optimizers:
            optimizer.workers.batch_weight = weight
        try:
            return original(data)
        finally:
            for optimizer in self._optimizers:
                optimizer.workers.batch_weight = 1.0

    def evaluate(self, original: Callable, *args, **kwargs) -> object:
        # fit() passes its own list of callbacks on to the validation, which all workers do together. Whoever else
        # evaluates does it alone.
        self._evaluating.append(isinstance(kwargs.get("callbacks"), keras.callbacks.CallbackList))
        try:
            return original(*args, **kwargs)
        finally:
            self._evaluating.pop()

    def get_compile_config(self, original: Callable) -> dict:
        config = original()
        optimizer = getattr(self._model, "optimizer", None)
        if "optimizer" in config and isinstance(optimizer, DistributedOptimizer):
            # A saved model loads where EasyScale is not installed.
            config["optimizer"] = keras.saving.serialize_keras_object(optimizer.inner_optimizer)
        return config

    def _get_metrics_result_or_logs(self, original: Callable, logs: dict) -> dict:
        if not self._training or not all(self._evaluating):
            return original(logs)
        if not self._evaluating:
            self._finish_epoch()
        self._workers.meet_for_metrics()
        variables = [variable for metric in self._model.metrics for variable in metric.variables]
        values = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
        totals = self._sum(values)
        for variable, value, total in zip(variables, values, totals, strict=True):
            variable.assign(total.astype(value.dtype))
        stops = self._sum([np.asarray(self._model.stop_training)])  # TerminateOnNaN, say, which saw what one worker saw
        self._model.stop_training = bool(stops[0])
        merged = original(logs)
        if merged is logs and logs:  # a train_step that returns numbers of its own
            means = self._sum([np.asarray(keras.ops.convert_to_numpy(value)) for value in logs.values()])
            merged = {name: mean / self.size for name, mean in zip(logs, means, strict=True)}
        return merged

    def _finish_epoch(self) -> None:
        """Take part in the others' steps until they have no more data either."""
        while (agreed := self._workers.wait_for_others()) is not None:
            if not any(optimizer.join(agreed) for optimizer in self._optimizers):
                raise ValueError(
                    "a worker must have had data before it can go on without. "
                    f"Received: none in this fit() on worker {self.rank}. Give each worker at least one batch"
                )

    def _sum(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """Return the sums over workers of arrays that have the same shapes on all of them."""
        row = np.concatenate([np.zeros(0), *(value.reshape(-1).astype("float64") for value in values)])
        total = self._workers.communicator.all_gather_rows(row).sum(axis=0)
        ends = np.cumsum([value.size for value in values])
        parts = np.split(total, ends[:-1]) if values else []
        return [part.reshape(value.shape) for part, value in zip(parts, values, strict=True)]


def _wrap(optimizer: keras.optimizers.Optimizer, options: dict, by_hand: bool) -> DistributedOptimizer:
    """Return `optimizer` as a `DistributedOptimizer` that stands outside any loss scaling.

    `compile()` puts a `LossScaleOptimizer` around the optimizer of a `mixed_float16` model. It skips a step whose
    gradients overflow, which all workers have to do together: so it must see the average.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = optimizer.inner_optimizer
        if isinstance(inner, DistributedOptimizer):
            if not isinstance(inner.inner_optimizer, keras.optimizers.LossScaleOptimizer):
                optimizer.inner_optimizer = inner.inner_optimizer
                inner.inner_optimizer = optimizer
                inner.built = False
            optimizer = inner
    if not isinstance(optimizer, DistributedOptimizer):
        return DistributedOptimizer(optimizer, **options)
    for name, value in options.items():
        if value is not None and value != getattr(optimizer, name):
            if not by_hand:  # by an earlier fit(), which may have been told otherwise
                return DistributedOptimizer(optimizer.inner_optimizer, **options)
            raise ValueError(
                f"`{name}` must be said once: the model's optimizer is already distributed, with {name}="
                f"{getattr(optimizer, name)!r}. Received: Distribute({name}={value!r}). Leave it out there"
            )
    return optimizer
