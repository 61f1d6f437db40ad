"""Extends the `CallbackList` of a `fit()` with `Distribute`.

Keras calls callbacks in the order of the list, and none of them knows the others. But collective operations must come
before or after all callbacks, and some callbacks must not run on every worker. So a few methods of the list, a
`keras.callbacks.CallbackList`, are replaced.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras

from easyscale.errors import EasyScaleError
from easyscale.keras_internals import improves, set_step
from easyscale.optimizer import DistributedOptimizer
from easyscale.timeline import Part, Timeline
from easyscale.training.end_signal import held_back

__all__ = ["WRITERS", "attach", "deciding_hooks", "on_set_model"]

# Only the chief runs these: they display or write what is the same on all workers, and decide nothing.
WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in (
        "BackupAndRestore",
        "CSVLogger",
        "ModelCheckpoint",
        "OrbaxCheckpoint",
        "ProgbarLogger",
        "RemoteMonitor",
        "TensorBoard",
    )
    if hasattr(keras.callbacks, name)
)

# These look for optimizers inside a `LossScaleOptimizer` or a `MultiOptimizer`, so they get the unwrapped one.
_LOOKING_INSIDE = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
)

_HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_epoch_end",
    "on_train_end",
)

# Workers agree on decisions after these two hooks if a callback has such a hook, by its name or its older name.
_STEP_HOOKS = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}


def on_set_model(act: Callable[[keras.callbacks.CallbackList, keras.Model], None]) -> None:
    """Call `act(callbacks, model)` whenever a `CallbackList` receives its model, before its callbacks do."""
    original = keras.callbacks.CallbackList.set_model

    @functools.wraps(original)
    def set_model(callbacks: keras.callbacks.CallbackList, model: keras.Model) -> None:
        if model:
            act(callbacks, model)
        original(callbacks, model)
        if isinstance(getattr(model, "optimizer", None), DistributedOptimizer):
            for callback in callbacks.callbacks:
                if type(callback) in _LOOKING_INSIDE:
                    callback.set_model(_Unwrapped(model))

    keras.callbacks.CallbackList.set_model = set_model


class Together(Protocol):
    """The collective operations of a `fit()`, around the callbacks of each rank.

    Attributes:
        hook: String. The hook whose callbacks are running; `None` outside of hooks, and in those of callbacks that only
            the chief runs.
    """

    hook: str | None

    @property
    def is_chief(self) -> bool: ...

    def begin(
        self, params: dict, hooks: list[str], callbacks: list, act_as_chief: Callable[..., list] | None
    ) -> None: ...

    def begin_epoch(self, epoch: int) -> None: ...

    def skips(self) -> bool: ...

    def has_ended(self, evaluates: bool) -> bool: ...

    def settle(self, hook: str) -> None: ...

    def decide(self, hook: str | None = None) -> None: ...

    def end_epoch(self) -> None: ...

    def end(self) -> None: ...

    def begin_evaluation(self) -> None: ...

    def end_evaluation(self) -> None: ...

    def fail(self, hook: str) -> None: ...

    def stop(self) -> None: ...


class _Unwrapped:
    """A view of a model without the `DistributedOptimizer` around its optimizer."""

    def __init__(self, model: keras.Model):
        self._model = model

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        return value.inner_optimizer if isinstance(value, DistributedOptimizer) else value


def attach(
    callbacks: keras.callbacks.CallbackList,
    distribution: Together,
    timeline: Timeline | None = None,
    has_checkpoints: bool = False,
) -> None:
    """Make a worker's list of callbacks act together with those of the other workers.

    - On workers other than the chief, callbacks that only display or write are left out, until the worker becomes the
      chief.
    - Steps made before the checkpoint from which training resumes are skipped without callbacks: anything they write
      after a step would have other weights. The end of a step that found no data is skipped as well.
    - Decisions of callbacks (to stop, another learning rate) apply to all workers: at the start and end of an epoch,
      and before or after each step if a callback may decide something then.

    Args:
        callbacks: The list.
        distribution: The model's `Distribution`, or `PipelineDistribution`, of two ranks or more.
        timeline: `Timeline` on which to record when steps and their callbacks begin. Defaults to `None`: none.
        has_checkpoints: Bool. Whether a SIGTERM that arrives while `fit()` starts is left to its checkpointing.
            Defaults to `False`: it ends this process.
    """
    timeline = timeline or Timeline()
    act_as_chief = None
    if not distribution.is_chief:
        left_out = [
            (index, callback) for index, callback in enumerate(callbacks.callbacks) if isinstance(callback, WRITERS)
        ]
        callbacks.callbacks = [callback for callback in callbacks.callbacks if not isinstance(callback, WRITERS)]
        act_as_chief = functools.partial(_act_as_chief, callbacks, left_out)

    def hooked(name: str | None, function: Callable) -> Callable:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            before, distribution.hook = distribution.hook, name
            try:
                return function(*args, **kwargs)
            finally:
                distribution.hook = before

        return called

    for callback in callbacks.callbacks:
        if isinstance(callback, WRITERS):
            for name in _HOOKS:
                method = getattr(callback, name)
                own = hooked(None, getattr(method, "_easyscale_original", method))  # maybe wrapped by an earlier fit()
                own._easyscale_original = getattr(method, "_easyscale_original", method)  # type: ignore[attr-defined]
                setattr(callback, name, own)

    def replace(name: str, replacement: Callable) -> None:
        original = getattr(callbacks, name)
        of_callbacks = hooked(name, original)

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> None:
            try:
                replacement(of_callbacks, *args, **kwargs)
            except EasyScaleError:
                distribution.stop()
                raise
            except BaseException:
                distribution.fail(name)
                raise

        setattr(callbacks, name, replaced)

    def on_train_begin(original: Callable, logs: dict | None = None) -> None:
        with held_back() if has_checkpoints else contextlib.nullcontext():
            original(logs)
            distribution.begin(callbacks.params, deciding_hooks(callbacks.callbacks), callbacks.callbacks, act_as_chief)

    def on_epoch_begin(original: Callable, epoch: int, logs: dict | None = None) -> None:
        distribution.begin_epoch(epoch)
        original(epoch, logs)
        distribution.decide()

    skipped = False

    def on_train_batch_begin(original: Callable, batch: int, logs: dict | None = None) -> None:
        nonlocal skipped
        if skipped := distribution.skips():
            return
        timeline.begin_step()
        distribution.settle("on_train_batch_begin")
        timeline.to(Part.CALLBACKS)
        original(batch, logs)
        timeline.to(Part.OTHER)
        distribution.decide("on_train_batch_begin")

    def on_train_batch_end(original: Callable, batch: int, logs: dict | None = None) -> None:
        if skipped or distribution.has_ended(evaluates=False):
            timeline.drop_step()
            return
        distribution.settle("on_train_batch_end")
        timeline.to(Part.CALLBACKS)
        original(batch, logs)
        timeline.to(Part.OTHER)
        distribution.decide("on_train_batch_end")

    def on_epoch_end(original: Callable, epoch: int, logs: dict | None = None) -> None:
        original(epoch, logs)
        distribution.end_epoch()
        distribution.decide()

    def on_train_end(original: Callable, logs: dict | None = None) -> None:
        original(logs)
        distribution.end()

    def on_test_begin(original: Callable, logs: dict | None = None) -> None:
        distribution.begin_evaluation()
        original(logs)

    def on_test_batch_end(original: Callable, batch: int, logs: dict | None = None) -> None:
        if not distribution.has_ended(evaluates=True):
            original(batch, logs)

    def on_test_end(original: Callable, logs: dict | None = None) -> None:
        distribution.end_evaluation()
        original(logs)

    for replacement in (
        on_train_begin,
        on_epoch_begin,
        on_train_batch_begin,
        on_train_batch_end,
        on_epoch_end,
        on_train_end,
        on_test_begin,
        on_test_batch_end,
        on_test_end,
    ):
        replace(replacement.__name__, replacement)


def _act_as_chief(
    callbacks: keras.callbacks.CallbackList,
    left_out: Sequence,
    past: dict[str, list],
    steps: int,
    epoch: int | None,
    validates: bool,
) -> list[keras.callbacks.Callback]:
    """Reinsert the callbacks that display and write, because this worker is the new chief; return all callbacks.

    Args:
        callbacks: The list.
        left_out: The callbacks that were left out of it, each with its index.
        past: Dict of lists. The logs of each epoch so far.
        steps: Int. The steps so far.
        epoch: Int. The epoch in progress; `None` if there is none.
        validates: Bool. Whether its validation has begun.
    """
    everything = list(callbacks.callbacks)  # Keras may be iterating over the other list
    for index, callback in left_out:
        everything.insert(index, callback)
        callback.set_params(callbacks.params)
        callback.set_model(callbacks.model)
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
        if not isinstance(callback, keras.callbacks.BackupAndRestore):  # it would restore its backup
            callback.on_train_begin()
        if isinstance(callback, keras.callbacks.TensorBoard):
            set_step(callback, steps)
        if getattr(callback, "save_best_only", False):
            _look_back(callback, past)
        if epoch is not None:
            callback.on_epoch_begin(epoch)
        if validates:
            callback.on_test_begin()
    callbacks.callbacks = everything
    return everything


def _look_back(checkpoint: keras.callbacks.ModelCheckpoint, history: dict[str, list]) -> None:
    """Set the best value so far of a checkpoint of the best model."""
    for value in history.get(checkpoint.monitor, []):
        if improves(checkpoint, value):
            checkpoint.best = value


def deciding_hooks(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """Return the step hooks in which a callback may decide or save: a custom one, or one of a few of Keras's.

    While one worker saves, the others must be able to send it their parts of the optimizer's state.
    """
    deciding = (keras.callbacks.TerminateOnNaN, keras.callbacks.LambdaCallback)
    callbacks = [
        callback
        for callback in callbacks
        if not type(callback).__module__.startswith("keras.")
        or isinstance(callback, deciding)
        or getattr(callback, "save_freq", "epoch") != "epoch"
    ]
    return [
        hook
        for hook, older in _STEP_HOOKS.items()
        if any(_has(callback, hook) or _has(callback, older) for callback in callbacks)
    ]


def _has(callback: keras.callbacks.Callback, hook: str) -> bool:
    is_own = hook in vars(callback) and not hasattr(vars(callback)[hook], "_easyscale_original")
    return is_own or getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
