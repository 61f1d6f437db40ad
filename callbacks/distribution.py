"""What a model does differently when it is trained by many workers.

Keras offers a callback no place inside a step. So a few of the model's methods are replaced on the instance, once, and
do more than before while `Distribute` is at work: `train_step`, `test_step`, `evaluate`, `save`, `save_weights` and
`get_compile_config`, which are public, and `_get_metrics_result_or_logs`, through which the logs of every epoch go on
their way to the callbacks.
"""

import functools
import warnings
from collections.abc import Callable

import keras
import numpy as np

from easyscale.callbacks import batch_normalization, metrics, randomness
from easyscale.callbacks.losses import global_losses
from easyscale.callbacks.wrapping import wrap
from easyscale.errors import DesyncError, EasyScaleWarning
from easyscale.optimizer import DistributedOptimizer
from easyscale.replication import Agreed, Purpose

__all__ = ["Distribution"]

_REPLACED = ("train_step", "test_step", "evaluate", "save", "save_weights", "get_compile_config")


class Distribution:
    """The distributed training of one model. Use `Distribution.of(model)`.

    Attributes:
        optimizers: List of the model's `DistributedOptimizer`s.
        size: Int. The number of workers.
        rank: Int. This worker's number.
        decides_in_steps: Bool. Whether a callback of any worker may decide something after a step.
        check_every: Int. After so many steps the workers' weights are compared.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self.optimizers: list[DistributedOptimizer] = []
        self.decides_in_steps = False
        self._made: list[DistributedOptimizer] = []  # those of them that were not wrapped by hand
        self._training = False  # inside a fit() that has the Distribute callback
        self._evaluations: list[bool] = []  # for each evaluate() under way: whether all workers are in it
        self._unseen_evaluation = False  # the first was under way before this object was made
        self._epoch = 0  # from 1; 0 outside of fit()
        self._steps = 0  # in this fit()
        self.check_every = 100
        model.test_function = None  # it may have been made with what is replaced here
        for name in (*_REPLACED, "_get_metrics_result_or_logs"):
            object.__setattr__(model, name, functools.partial(getattr(self, name), getattr(model, name)))

    @classmethod
    def of(cls, model: keras.Model) -> "Distribution":
        """Return the model's distribution; make it the first time."""
        if "_easyscale" not in vars(model):
            object.__setattr__(model, "_easyscale", cls(model))  # past Keras, which would track it
        return model._easyscale

    @property
    def _workers(self) -> object:
        return self.optimizers[0].workers

    @property
    def rank(self) -> int:
        return self._workers.communicator.rank if self.optimizers else 0

    @property
    def size(self) -> int:
        return self._workers.communicator.size if self.optimizers else 1

    def wrap_optimizers(self, options: dict) -> None:
        """Make every optimizer among the model's attributes a `DistributedOptimizer` with these options."""
        found = {
            name: value for name, value in vars(self._model).items() if isinstance(value, keras.optimizers.Optimizer)
        }
        self.optimizers = []
        for name, value in sorted(found.items()):
            by_hand = not any(value is one for one in self._made)
            wrapped = wrap(value, options, by_hand)
            if wrapped is not value:
                self._made.append(wrapped)
                setattr(self._model, name, wrapped)
                self._model.train_function = None  # it was made with the old one
            if not any(wrapped is other for other in self.optimizers):
                self.optimizers.append(wrapped)
        for optimizer in self.optimizers:
            optimizer.workers  # noqa: B018  (all ranks connect now, in one order)
            optimizer.starts_equal = False  # `begin` sees to it, for the whole model

    # A fit(), with two workers or more

    def begin(self, epochs: int, decides_in_steps: bool) -> None:
        """Start a `fit()`, after its callbacks have: equal workers, and errors that say what happened."""
        self._training, self._evaluations, self._steps = True, [], 0
        self._workers.same_batch()  # forgets the last fit()'s
        self._begin_phase(epoch=0)
        self._agree_on_epochs(epochs, decides_in_steps)
        optimizer = getattr(self._model, "optimizer", None)
        if self._model.built and optimizer is not None and not optimizer.built and self._model.trainable_variables:
            optimizer.build(self._model.trainable_variables)
        self._start_equal()
        if not hasattr(self._model.train_function, "explained"):
            self._model.train_function = self._explained(self._model.train_function)

    def _agree_on_epochs(self, epochs: int, decides_in_steps: bool) -> None:
        plan = {"epochs": epochs, "first": self._model._initial_epoch, "decides": decides_in_steps}
        everyones = self._workers.communicator.share(plan)
        different = [rank for rank, theirs in enumerate(everyones) if theirs["epochs"] != everyones[0]["epochs"]]
        if different:
            raise DesyncError(
                f"all ranks must train for the same epochs. Received: epochs={everyones[0]['epochs']} on rank 0, "
                f"epochs={everyones[different[0]]['epochs']} on rank {different[0]}. Run one script on all ranks"
            )
        self._model._initial_epoch = everyones[0]["first"]  # which BackupAndRestore may have set, on the chief
        self.decides_in_steps = any(theirs["decides"] for theirs in everyones)

    def begin_epoch(self, epoch: int) -> None:
        """Start the epoch number `epoch`, from 0."""
        self._begin_phase(epoch + 1)

    def begin_evaluation(self) -> None:
        """Start an `evaluate()` of all workers."""
        if self._evaluations:
            self._evaluations[-1] = True
        else:
            self._evaluations, self._unseen_evaluation = [True], True
        self._begin_phase(self._epoch)

    def end_evaluation(self) -> None:
        """End an `evaluate()` of all workers."""
        if self._unseen_evaluation:
            self._evaluations, self._unseen_evaluation = [], False
        self._begin_phase(self._epoch, evaluates=False)

    def end(self) -> None:
        """End a `fit()`, after its callbacks have."""
        self._reach(Purpose.CHECK, self._steps)
        self._check(self._steps)
        self._stop()

    def _stop(self) -> None:
        self._training = False
        self._begin_phase(epoch=0)

    def _begin_phase(self, epoch: int, evaluates: bool | None = None) -> None:
        self._epoch = epoch
        evaluates = bool(self._evaluations) if evaluates is None else evaluates
        together = all(self._evaluations) and (self._training or evaluates)
        self._workers.begin(2 * epoch + evaluates, together)

    # Steps

    def _explained(self, train_function: Callable) -> Callable:
        @functools.wraps(train_function)
        def explained(iterator: object) -> object:
            if not self._training:
                return train_function(iterator)
            with self._workers.explained(on_failure=self._stop):
                if self._steps == 0:
                    self._build(iterator)
                    exchanges, before = self._workers.exchanges, self._workers.fingerprint(self._weights)
                logs = train_function(iterator)
                if self._steps == 0:
                    self._check_first_step(exchanges, before)
                self._count_steps()
            return logs

        explained.explained = True
        return explained

    def _build(self, iterator: object) -> None:
        """Build a model that would otherwise be built by its first step: its variables have to be equal before."""
        if not self._model.built or not all(layer.built for layer in self._model.layers):
            self._workers.rehearse(self._model.train_step, iterator)
            self._start_equal()

    def _start_equal(self) -> None:
        variables = list(self._model.weights)
        for optimizer in self.optimizers:
            variables += optimizer.variables
        self._workers.start_equal(variables)
        randomness.differ(self._model, self._workers.communicator)
        batch_normalization.synchronize(self._model, self._workers)

    def _check_first_step(self, exchanges: int, before: np.ndarray) -> None:
        after = self._workers.fingerprint(self._weights)
        if self._workers.exchanges == exchanges and not np.array_equal(before, after):
            raise DesyncError(
                f"a step must exchange its gradients. Received: a first step of {type(self._model).__name__} that has "
                "changed weights without an exchange. Let `train_step` call `self.optimizer.apply(gradients, "
                "variables)`, and make each optimizer an attribute of the model"
            )
        if self._workers.same_batch() and self.rank == 0:
            warnings.warn(
                f"each worker should have its own part of the data. Received: the same first batch on all {self.size} "
                "workers. Divide the data: `x, y = easyscale.shard(x, y)`",
                EasyScaleWarning,
                stacklevel=2,
            )

    def _count_steps(self) -> None:
        before, self._steps = self._steps, self._steps + self._model.steps_per_execution
        if before == 0 or before // self.check_every < self._steps // self.check_every:
            self._reach(Purpose.CHECK, self._steps)
            self._check(self._steps)

    @property
    def _weights(self) -> list:
        return self._model.trainable_variables

    def _check(self, steps: int) -> None:
        self._workers.check_equal(self._weights, steps)

    def decide(self) -> None:
        """Stop if a callback of any worker has said so, and take the chief's learning rate."""
        self._reach(Purpose.DECISION)
        self._decide()

    def _decide(self) -> None:
        rates = [float(optimizer.learning_rate) for optimizer in self.optimizers]
        rows = self._workers.communicator.all_gather_rows(np.array([self._model.stop_training, *rates], "float64"))
        self._model.stop_training = bool(rows[:, 0].any())
        for optimizer, own, chiefs in zip(self.optimizers, rates, rows[0, 1:], strict=True):
            if own != chiefs:
                optimizer.learning_rate = float(chiefs)

    def _reach(self, purpose: Purpose, detail: int = 0) -> None:
        """Return when all workers have come to `purpose`; until then take part in what those do who have more steps."""
        while (agreed := self._workers.meet(purpose, detail)).purpose != purpose:
            self._join(agreed)

    def _join(self, agreed: Agreed) -> None:
        if agreed.purpose == Purpose.CHECK:
            self._check(agreed.detail)
        elif agreed.purpose == Purpose.DECISION:
            self._decide()
        elif not any(optimizer.join(agreed) for optimizer in self.optimizers):
            raise ValueError(
                "a worker must have had data before it can go on without. "
                f"Received: none in this fit() on worker {self.rank}. Give each worker at least one batch"
            )

    def _end_epoch(self) -> None:
        communicator = self._workers.communicator
        self._steps = max(communicator.share(self._steps))
        # While gradients are accumulated, the moving statistics are not exchanged.
        moving = batch_normalization.moving_statistics(self._model)
        for variable, mean in zip(moving, metrics.average(moving, communicator), strict=True):
            variable.assign(mean.astype("float32"))

    # What replaces the model's own methods; `original` is the one replaced.

    def train_step(self, original: Callable, data: object) -> dict:
        return self._step(original, data) if self._training else original(data)

    def test_step(self, original: Callable, data: object) -> dict:
        return self._step(original, data) if self.size > 1 else original(data)

    def _step(self, original: Callable, data: object) -> dict:
        tensors = keras.tree.flatten(data)
        for optimizer in self.optimizers:
            optimizer.workers.batch_weight = self._workers.count_samples(tensors)
            optimizer.workers.batch = self._workers.describe_batch(tensors)
            optimizer.workers.moving = batch_normalization.moving_statistics(self._model)
        try:
            with global_losses(self._workers):
                return original(data)
        finally:
            for optimizer in self.optimizers:
                optimizer.workers.batch_weight, optimizer.workers.batch, optimizer.workers.moving = 1.0, 0.0, []

    def evaluate(self, original: Callable, *args, **kwargs) -> object:
        if self.size == 1:
            return original(*args, **kwargs)
        # All workers evaluate together only if the list of callbacks has Distribute in it, as that of fit() has.
        self._evaluations.append(False)
        self._workers.begin(0, together=False)
        try:
            return original(*args, **kwargs)
        finally:
            self._evaluations.pop()
            self._begin_phase(self._epoch)

    def save(self, original: Callable, *args, **kwargs) -> None:
        # In fit() all workers come here, in callbacks of the user's own; the file is written once.
        if not self._training or self.rank == 0:
            original(*args, **kwargs)

    save_weights = save

    def get_compile_config(self, original: Callable) -> dict:
        config = original()
        optimizer = getattr(self._model, "optimizer", None)
        if "optimizer" in config and isinstance(optimizer, DistributedOptimizer):
            # A saved model loads where EasyScale is not installed.
            config["optimizer"] = keras.saving.serialize_keras_object(optimizer.inner_optimizer)
        return config

    def _get_metrics_result_or_logs(self, original: Callable, logs: dict) -> dict:
        if not (self._training or self._evaluations) or not all(self._evaluations):
            return original(logs)
        self._reach(Purpose.END)
        if not self._evaluations:
            self._end_epoch()
        metrics.merge(self._model.metrics, self._workers.communicator)
        merged = original(logs)
        if merged is logs and logs:  # a train_step that returns numbers of its own
            merged = dict(zip(logs, metrics.average(logs.values(), self._workers.communicator), strict=True))
        return merged
