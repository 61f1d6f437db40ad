"""A learning rate warm-up over the first epochs."""

from typing import Any

import keras

from easyscale import workers
from easyscale.errors import is_number
from easyscale.keras_internals import learning_rate_of

__all__ = ["LearningRateWarmup"]


class LearningRateWarmup(keras.callbacks.Callback):
    """Increase the learning rate linearly, batch by batch, during the first epochs of a `fit()`.

        rate = start + (target - start) * (epoch + batch / steps_per_epoch) / epochs

    At the rate that a large batch needs, training would diverge at the start. After the warm-up the rate is `target`,
    and other callbacks may change it. `easyscale.optimizers.schedules.Warmup` is the equivalent schedule.

    For momentum correction, use `easyscale.optimizers.SGD`, or `LARS(momentum_correction=True)`: the velocity of
    `keras.optimizers.SGD` keeps steps at earlier rates.

    Args:
        epochs: Float. Length of the warm-up. Defaults to `5`.
        start: Float. The rate of the first batch. Defaults to `None`: `target / easyscale.size()`, the rate of one
            worker if `target` has been scaled linearly; with one worker there is then no warm-up.
        target: Float. The rate at the end. Defaults to `None`: the optimizer's when `fit()` begins. Set it if a `fit()`
            may begin during the warm-up, as with `BackupAndRestore` or a second `fit()`.
        steps_per_epoch: Int. Defaults to `None`: the number that Keras finds for the data.
        verbose: Int. `1`: the chief prints when the warm-up ends. Defaults to `0`.

    Raises:
        ValueError: If an argument is out of its range or, in `fit()`, the learning rate is a schedule, or the number of
            batches in an epoch is unknown.

    Example:

    >>> rate = easyscale.scaled_lr(0.1, base_batch=64)
    >>> model.compile(easyscale.optimizers.SGD(rate), "mse")
    >>> model.fit(x, y, callbacks=[easyscale.callbacks.Distribute(), easyscale.callbacks.LearningRateWarmup(epochs=5)])

    Reference: Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 2.2.
    """

    def __init__(
        self,
        epochs: float = 5,
        start: float | None = None,
        target: float | None = None,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ):
        super().__init__()
        if not is_number(epochs, above=0):
            raise ValueError(f"`epochs` must be a number above 0. Received: {epochs=}")
        for name, value in (("start", start), ("target", target)):
            if value is not None and not is_number(value, 0):
                raise ValueError(f"`{name}` must be a number of 0 or more. Received: {name}={value!r}")
        if steps_per_epoch is not None and not is_number(steps_per_epoch, 1, whole=True):
            raise ValueError(f"`steps_per_epoch` must be an integer of 1 or more. Received: {steps_per_epoch=}")
        self.epochs, self.start, self.target = epochs, start, target
        self.steps_per_epoch, self.verbose = steps_per_epoch, verbose
        self._is_over = True

    def on_train_begin(self, logs: dict | None = None) -> None:
        rate = self._rate()
        self._target = self.target if self.target is not None else rate
        self._start = self.start if self.start is not None else self._target / workers.size()
        self._steps = self.steps_per_epoch or self.params.get("steps")
        if self._steps is None:
            raise ValueError(
                "`LearningRateWarmup` must know how many batches an epoch has. Received: data that does not say it. "
                "Pass `steps_per_epoch`"
            )
        self._is_over = False

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        if self._is_over:
            return
        part = min((self._epoch + batch / self._steps) / self.epochs, 1.0)
        self.model.optimizer.learning_rate = self._start + (self._target - self._start) * part
        self._is_over = part == 1.0
        if self._is_over and self.verbose and workers.is_chief():
            print(f"\nEasyScale: learning rate {self._target:g} after {self.epochs:g} epochs of warm-up", flush=True)

    def _rate(self) -> float:
        optimizer: Any = getattr(self.model, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        inner = getattr(inner, "inner_optimizer", inner)
        rate = learning_rate_of(inner)
        if not isinstance(rate, keras.Variable):
            raise ValueError(
                "`LearningRateWarmup` needs an optimizer whose learning rate is a number. Received: "
                f"{type(inner).__name__} with {type(rate).__name__}. Give the optimizer "
                "`easyscale.optimizers.schedules.Warmup(schedule, steps)` instead"
            )
        return float(optimizer.learning_rate)
