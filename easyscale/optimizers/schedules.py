"""Learning-rate schedules that Keras lacks."""

from typing import Any

import keras
from keras.optimizers.schedules import LearningRateSchedule

from easyscale.errors import is_number

__all__ = ["PolynomialDecay", "Warmup"]


@keras.saving.register_keras_serializable(package="easyscale")
class Warmup(LearningRateSchedule):
    """A linear warm-up to a learning rate or to any schedule.

        rate(t) = start + (learning_rate(t) - start) * t / steps      for t < steps
        rate(t) = learning_rate(t)                                    after

    The inner schedule counts from the first step of training, including the warm-up. `PolynomialDecay` in this module
    has a built-in warm-up instead, and decays from its end.

    Args:
        learning_rate: Float, or a `LearningRateSchedule`. The target of the warm-up.
        steps: Int. Length of the warm-up, in weight updates.
        start: Float. The rate of the first step. Defaults to `0.0`; Goyal et al. start from that of the small batch.
        name: String. Defaults to `None`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> rate = easyscale.optimizers.schedules.Warmup(0.8, steps=4, start=0.1)
    >>> [round(float(rate(step)), 3) for step in (0, 1, 2, 4, 100)]
    [0.1, 0.275, 0.45, 0.8, 0.8]

    Reference: Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 2.2.
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule,
        steps: int,
        start: float = 0.0,
        name: str | None = None,
    ):
        super().__init__()
        is_rate = isinstance(learning_rate, LearningRateSchedule) or is_number(learning_rate, 0)
        _check(is_rate, "learning_rate", "a schedule, or a number of 0 or more", learning_rate)
        _check(is_number(steps, 0, whole=True), "steps", "an integer of 0 or more", steps)
        _check(is_number(start, 0), "start", "a number of 0 or more", start)
        self.learning_rate, self.steps, self.start, self.name = learning_rate, steps, start, name

    def __call__(self, step: Any) -> Any:
        target = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        target = keras.ops.convert_to_tensor(target, keras.config.floatx())
        return _ramp(self.start, target, step, self.steps)

    def get_config(self) -> dict:
        rate = self.learning_rate
        if isinstance(rate, LearningRateSchedule):
            rate = keras.saving.serialize_keras_object(rate)
        return {"learning_rate": rate, "steps": self.steps, "start": self.start, "name": self.name}

    @classmethod
    def from_config(cls, config: dict) -> "Warmup":
        rate = config["learning_rate"]
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate)
        return cls(**{**config, "learning_rate": rate})


@keras.saving.register_keras_serializable(package="easyscale")
class PolynomialDecay(LearningRateSchedule):
    """The learning-rate schedule of the LARS papers: a linear warm-up, then polynomial decay until training ends.

        rate(t) = start + (learning_rate - start) * t / warmup_steps                              for t < warmup_steps
        rate(t) = end + (learning_rate - end) * (1 - (t - warmup_steps) / (steps - warmup_steps)) ** power      after
        rate(t) = end                                                                             for t >= steps

    Args:
        learning_rate: Float. The maximum rate.
        steps: Int. Length of training, in weight updates: the rate reaches `end` after them.
        warmup_steps: Int. How many of them are the warm-up. Defaults to `0`.
        power: Float. Defaults to `2.0`, as in the paper.
        start: Float. The rate of the first step of the warm-up. Defaults to `0.0`.
        end: Float. The final rate. Defaults to `0.0`.
        name: String. Defaults to `None`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> rate = easyscale.optimizers.schedules.PolynomialDecay(1.0, steps=12, warmup_steps=2)
    >>> [round(float(rate(step)), 3) for step in (0, 1, 2, 7, 12, 20)]
    [0.0, 0.5, 1.0, 0.25, 0.0, 0.0]

    Reference: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017.
    """

    def __init__(
        self,
        learning_rate: float,
        steps: int,
        warmup_steps: int = 0,
        power: float = 2.0,
        start: float = 0.0,
        end: float = 0.0,
        name: str | None = None,
    ):
        super().__init__()
        _check(is_number(learning_rate, 0), "learning_rate", "a number of 0 or more", learning_rate)
        _check(is_number(steps, 1, whole=True), "steps", "an integer of 1 or more", steps)
        is_part = is_number(warmup_steps, 0, whole=True) and warmup_steps < steps
        _check(is_part, "warmup_steps", f"an integer from 0 to {steps - 1}", warmup_steps)
        _check(is_number(power, above=0), "power", "a number above 0", power)
        _check(is_number(start, 0), "start", "a number of 0 or more", start)
        _check(is_number(end, 0), "end", "a number of 0 or more", end)
        self.learning_rate, self.steps, self.warmup_steps, self.power = learning_rate, steps, warmup_steps, power
        self.start, self.end, self.name = start, end, name

    def __call__(self, step: Any) -> Any:
        after = keras.ops.cast(step, keras.config.floatx()) - self.warmup_steps
        left = 1 - keras.ops.clip(after / (self.steps - self.warmup_steps), 0, 1)
        decayed = self.end + (self.learning_rate - self.end) * keras.ops.power(left, self.power)
        return _ramp(self.start, decayed, step, self.warmup_steps)  # during the warm-up, `left` is 1

    def get_config(self) -> dict:
        names = ("learning_rate", "steps", "warmup_steps", "power", "start", "end", "name")
        return {name: getattr(self, name) for name in names}


def _ramp(start: float, target: Any, step: Any, steps: int) -> Any:
    part = keras.ops.minimum(keras.ops.cast(step, keras.config.floatx()) / max(steps, 1), 1.0) if steps else 1.0
    return start + (target - start) * part


def _check(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
