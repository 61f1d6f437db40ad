"""Distributed training of a model by many workers.

Keras gives callbacks no access to the inside of a step. So a few of the model's methods are replaced on the instance,
once, and extended while `Distribute` is active: `train_step`, `make_train_function`, `test_step`, `evaluate`, `save`,
`save_weights`, `export`, `predict`, `compile`, `get_compile_config` and `get_state_tree`, which are public, and the
method that passes the logs of every epoch to the callbacks.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from easyscale import backend as backends
from easyscale import keras_internals, separate
from easyscale.communicator.data_axis import everyone_of
from easyscale.data import division
from easyscale.optimizer import DistributedOptimizer
from easyscale.parallel import Split
from easyscale.progress import Activity
from easyscale.replication.replication import Replication
from easyscale.training.fit import Fit
from easyscale.training.model_step import run_alone, run_step
from easyscale.training.parts import losses
from easyscale.training.split import refusals
from easyscale.training.split.split_model import SplitModel
from easyscale.training.test_function import TestFunction
from easyscale.training.train_function import TrainFunction
from easyscale.training.wrapping import wrap_all

__all__ = ["Distribution"]

_REPLACED = (
    "train_step",
    "make_train_function",
    "test_step",
    "evaluate",
    "save",
    "save_weights",
    "export",
    "predict",
    "compile",
    "get_compile_config",
    "get_state_tree",
)


class Distribution:
    """The distributed training of one model. Use `Distribution.of(model)`.

    Attributes:
        optimizers: List of the model's `DistributedOptimizer`s.
        size: Int. The number of workers.
        is_chief: Bool. Whether this worker is the one that writes.
        is_elastic: Bool. Whether workers that fail are left out.
        check_every: Int. The number of steps between comparisons of the workers' weights.
    """

    def __init__(self, model: keras.Model):
        keras_internals.check()
        losses.install()
        self._model = model
        self.optimizers: list[DistributedOptimizer] = []
        self._made: list[DistributedOptimizer] = []  # those that were not wrapped by hand
        self._training = False  # inside a fit() that has the Distribute callback
        self._evaluates_part = False  # whether the current evaluate() has data divided by `shard`
        self._evaluations: list[bool] = []  # for each evaluate() in progress: whether all workers take part
        self._unseen_evaluation = False  # the first was in progress before this object was made
        self._epoch = 0  # from 1; 0 outside of fit()
        self._last_fit: Fit | None = None
        self._split: SplitModel | None = None
        self._train_function: TrainFunction | None = None  # of the last fit(); outside of fit() Keras has another
        self._test_function = TestFunction(model)
        self.hook: str | None = None  # see `callback_list.Together`
        self.check_every = 100
        self.checkpoint: dict[str, Any] | None = None  # arguments of `Checkpointing`
        self._act_as_chief: Callable[..., list] | None = None  # makes this worker's callbacks act as the chief's
        model.test_function = None  # it may have been made from the original methods
        for name in (*_REPLACED, keras_internals.LOGS):
            if hasattr(model, name):  # a layer that is a `Trainer` but no `Model` cannot be saved
                own = self._results if name == keras_internals.LOGS else getattr(self, name)
                object.__setattr__(model, name, functools.partial(own, backends.get().steps.method_of(model, name)))

    @classmethod
    def of(cls, model: keras.Model) -> "Distribution":
        """Return the model's distribution; create it the first time."""
        if "_easyscale" not in vars(model):
            object.__setattr__(model, "_easyscale", cls(model))  # bypasses Keras, which would track it
        return model._easyscale

    @property
    def _replication(self) -> Replication:
        return self.optimizers[0].workers

    @property
    def _fit(self) -> Fit:
        """The current `fit()`, or `evaluate()`, of all workers."""
        if self._last_fit is None:
            raise RuntimeError(f"no fit() of {type(self._model).__name__} '{self._model.name}' has begun")
        return self._last_fit

    @property
    def _is_synchronous(self) -> bool:
        return self.optimizers[0].is_synchronous

    @property
    def is_chief(self) -> bool:
        return not self.optimizers or self._replication.communicator.is_chief

    @property
    def is_elastic(self) -> bool:
        return bool(self.optimizers) and self._replication.communicator.membership.is_elastic

    @property
    def size(self) -> int:
        return self._replication.size if self.optimizers else 1

    @property
    def ranks(self) -> int:
        """The number of workers; if each is several ranks, the number of ranks."""
        return max(self.size, everyone_of(self._replication.communicator).size) if self.optimizers else 1

    def wrap_optimizers(self, options: dict) -> None:
        """Wrap every optimizer among the model's attributes in a `DistributedOptimizer` with these options."""
        count = len(self._made)
        self.optimizers = wrap_all(self._model, options, self._made)
        if len(self._made) > count:
            self._model.train_function = self._train_function = None  # they were made with the old optimizers
        for optimizer in self.optimizers:
            optimizer.workers.replicas.check_model(self._model)  # all ranks connect now, in the same order
            optimizer.starts_equal = False  # `Fit` makes the whole model start equal

    def split_by(self, split: Split | None) -> None:
        """Set which layers are split in the next `fit()`, if any."""
        if self._split is not None and self._split.optimizer is not self.optimizers[0]:
            self._split = None  # it belongs to the old optimizer
        before = None if self._split is None else self._split.split
        if repr(before) == repr(split):
            return
        if split is not None:
            refusals.check_job(self.optimizers)
        self._split = None if split is None else SplitModel(self._model, split, self.optimizers[0])
        self._model.train_function = self._train_function = None

    # A fit() or evaluate() of two workers or more

    def begin(self, params: dict, hooks: list[str], callbacks: list, act_as_chief: Callable[..., list] | None) -> None:
        """Start a `fit()`, after its callbacks: check the losses, and make the workers equal."""
        losses.check(self._model)
        self._last_fit = Fit(
            self._model,
            self.optimizers,
            self.check_every,
            verbose=bool(params.get("verbose")),
            callbacks=callbacks,
            checkpoint=self.checkpoint,
            trace_anew=self._trace_anew,
            take_over=self._take_over,
            split=self._split,
        )
        self._training, self._evaluations, self._act_as_chief = True, [], act_as_chief
        self._begin_phase(epoch=0)
        self._fit.begin(params["epochs"], hooks)
        if self._train_function is None or not self._train_function.is_for(self._model):
            self._train_function = TrainFunction(self._model, self._train)
        self._model.train_function = self._train_function
        if self._replication.communicator.membership.is_joining:
            self._fit.enter(self._train_function)

    def _trace_anew(self) -> None:
        self._model.make_train_function(force=True)
        self._model.train_function = self._train_function = TrainFunction(self._model, self._train)

    def _train(self, train_function: TrainFunction, iterator: Iterator) -> Any:
        if not self._training:
            return train_function.function(iterator)
        with division.explained(), self._replication.steps.explained(on_failure=self.stop):
            return self._fit.step(train_function, iterator)

    def begin_epoch(self, epoch: int) -> None:
        """Start epoch number `epoch`, from 0."""
        self._begin_phase(epoch + 1)
        self._fit.begin_epoch(epoch)

    def _take_over(self, past: dict[str, list], steps: int, epoch: int | None) -> list | None:
        validates = self._training and any(self._evaluations)
        return self._act_as_chief(past, steps, epoch, validates) if self._act_as_chief is not None else None

    def end_epoch(self) -> None:
        """End an epoch. Called after the epoch's callbacks."""
        self._fit.progress.end_epoch()

    def skips(self) -> bool:
        """Return whether the step that begins was made before the checkpoint from which training resumes."""
        return self._fit.skips

    def has_ended(self, evaluates: bool) -> bool:
        """Return whether the step that ends found no more data, so that none was made."""
        return self._fit.has_ended(evaluates)

    def settle(self, hook: str) -> None:
        """Update the model to the weights of the last step if a callback of any worker may read them in this hook."""
        if self._fit.decides_in(hook):
            self._fit.settle()

    def decide(self, hook: str | None = None) -> None:
        """Apply decisions of any worker's callbacks to all workers; after a step's hook only if there may be some."""
        if hook is None or self._fit.decides_in(hook):
            self._fit.decide(of_epoch=hook is None)

    def begin_evaluation(self) -> None:
        """Start an `evaluate()` of all workers. Servers have no data for it."""
        if self._evaluations:
            self._evaluations[-1] = True
        else:
            self._evaluations, self._unseen_evaluation = [True], True
        if not self._training:
            self._last_fit = Fit(self._model, self.optimizers, self.check_every)
        self._begin_phase(self._epoch)
        self._test_function.begin(self._replication.communicator.is_server)

    def end_evaluation(self) -> None:
        """End an `evaluate()` of all workers."""
        if self._unseen_evaluation:
            self._evaluations, self._unseen_evaluation = [], False
        self._begin_phase(self._epoch, evaluates=False)
        self._test_function.end()

    def end(self) -> None:
        """End a `fit()`, after its callbacks."""
        if not self._fit.passes:
            self._fit.end()
        self.stop()

    def meet_in_hook(self) -> None:
        """Wait for all workers in a hook that all of them call; return immediately in another hook."""
        if self._training and self.hook is not None and not any(self._evaluations):
            if self.hook in ("on_epoch_begin", "on_epoch_end", "on_train_end"):
                self._fit.decide(of_epoch=True)
            elif self._fit.decides_in(self.hook):
                self._fit.decide()

    def fail(self, hook: str) -> None:
        """Leave a `fit()` in which a callback has raised an exception, on this worker or on all.

        Workers meet as they would have at the end of the hook: the chief may be in a callback that saves, and need the
        other workers' parts of the optimizer's state.
        """
        if self._training and (hook in ("on_epoch_begin", "on_epoch_end") or self._fit.decides_in(hook)):
            with contextlib.suppress(Exception):  # the callback's exception is the one to report
                self._fit.decide()
        self.stop()

    def stop(self) -> None:
        """Leave a `fit()`; if it has not ended, without the other workers."""
        self._training = False
        if self._last_fit is not None:
            self._last_fit.stop()
        self._begin_phase(epoch=0)
        if self._split is not None:
            self._split.end(complete=False)
        for optimizer in self.optimizers:
            optimizer.unshard(complete=False)
        self._model.train_function = None  # training without the other workers needs another function

    def _begin_phase(self, epoch: int, evaluates: bool | None = None) -> None:
        self._epoch = epoch
        evaluates = bool(self._evaluations) if evaluates is None else evaluates
        together = all(self._evaluations) and (evaluates or (self._training and self._is_synchronous))
        self._replication.steps.begin(2 * epoch + evaluates, together, evaluates and not self._evaluates_part)
        if epoch and not evaluates and self._fit.progress.traces:  # Keras makes the function and prepares data
            self._replication.communicator.progress.activity = Activity.FIRST_STEP

    # Replacements of the model's methods; `original` is the replaced method.

    def train_step(self, original: Callable, *data: Any) -> Any:
        if self._training and len(data) == 1:
            return self._step(original, data[0], self._fit.rounds.exchanges)
        if self._replication.replicas.has_copies:  # the optimizer expects gradients of undivided losses
            return run_step(original, data[0], self._model, self.optimizers, is_alone=True)
        return run_alone(original, data, self._model, self.optimizers)

    def make_train_function(self, original: Callable[..., None], force: bool = False) -> None:
        make = functools.partial(original, force)
        make() if self.ranks == 1 else backends.get().steps.make_train_function(self._model, make, force)

    def test_step(self, original: Callable, *data: Any) -> Any:
        return self._step(original, *data) if self.ranks > 1 and len(data) == 1 else original(*data)

    def _step(self, original: Callable, data: Any, exchanges: bool = True) -> Any:
        data = data if self._split is None else self._split.batch(data)
        return run_step(original, data, self._model, self.optimizers, exchanges=exchanges)

    def evaluate(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        if self._training:
            kwargs = dict(self._fit.data.of_validation(kwargs))
        if self.ranks == 1:
            with division.explained():
                return original(*args, **kwargs)
        # All workers evaluate together only if the callbacks include Distribute, as those of fit() do.
        self._evaluations.append(False)
        self._evaluates_part = division.is_part(kwargs.get("x", args[0] if args else None))
        self._replication.steps.begin(0, together=False)
        self._replication.communicator.progress.activity = Activity.EVALUATION
        is_alone = keras_internals.OF_FIT not in kwargs
        try:
            with division.explained(), self._whole_layers() if is_alone else contextlib.nullcontext():
                return original(*args, **kwargs)
        finally:
            is_of_all = self._evaluations.pop()
            if is_alone and self._evaluates_part and not is_of_all and self.is_chief:
                separate.warn_of_evaluation()
            self._begin_phase(self._epoch)

    def save(self, original: Callable, *args: Any, **kwargs: Any) -> None:
        if not self._training or self.is_chief:  # in fit(), custom callbacks call this on all workers
            with self._whole_layers():
                original(*args, **kwargs)

    save_weights = export = save

    def predict(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        with self._whole_layers():
            return original(*args, **kwargs)

    def _whole_layers(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this worker's layers are whole, even if split, with the weights that all share."""
        if self._split is not None:
            return self._split.whole()
        return self._fit.rounds.of_last() if self._training else contextlib.nullcontext()

    def compile(self, original: Callable, *args: Any, **kwargs: Any) -> None:
        self._train_function = None
        original(*args, **kwargs)
        backends.get().steps.renew(self._model)

    def get_compile_config(self, original: Callable) -> dict:
        config = original()
        optimizer = getattr(self._model, "optimizer", None)
        if "optimizer" in config and isinstance(optimizer, DistributedOptimizer):
            # A saved model must load where EasyScale is not installed.
            config["optimizer"] = keras.saving.serialize_keras_object(optimizer.inner_optimizer)
        return config

    def get_state_tree(self, original: Callable, value_format: str = "backend_tensor") -> dict:
        with self._whole_layers():
            tree, optimizer = original(value_format), self._model.optimizer
        if isinstance(optimizer, DistributedOptimizer) and optimizer.is_sharded:
            tree["optimizer_variables"] = optimizer.updates.state_tree(value_format)
        return tree

    def _results(self, original: Callable, logs: dict) -> dict:
        if not (self._training or self._evaluations) or not all(self._evaluations):
            return original(logs)
        evaluates = bool(self._evaluations)
        merged = self._fit.end_data(not evaluates, logs, may_be_whole=evaluates and not self._evaluates_part)
        return merged if evaluates else {**merged, **self._fit.logs()}
