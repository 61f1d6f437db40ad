"""LARS: SGD in which each weight's step is scaled by its norm."""

from collections.abc import Sequence
from typing import Any

import keras

from easyscale.errors import is_number

__all__ = ["LARS"]

_EXCLUDED = ("bias", "beta", "gamma", "scale")  # biases and normalization parameters of Keras's layers


@keras.saving.register_keras_serializable(package="easyscale")
class LARS(keras.optimizers.Optimizer):
    """Layer-wise adaptive rate scaling: SGD with momentum for large batches.

        ratio = trust_coefficient * |w| / (|g| + weight_decay * |w|)
        velocity = momentum * velocity - learning_rate * ratio * (g + weight_decay * w)
        w = w + velocity

    The norms are over a whole weight tensor. Biases and normalization parameters have a ratio of 1 and no weight decay,
    as in SGD. If a norm is zero, the ratio is 1. Each worker updates all weights (`update="replicated"`).

    Args:
        learning_rate: A float, a `keras.optimizers.schedules.LearningRateSchedule`, or a callable that takes no
            arguments. Defaults to `0.1`; large batches need more, with the default `trust_coefficient` often above 1.
        momentum: Float, from 0 to 1. Defaults to `0.9`.
        weight_decay: Float. Added to the gradient before scaling, unlike in other Keras optimizers. Defaults to `0.0`.
        trust_coefficient: Float. Size of a step relative to the norm of the weight, at a learning rate of 1. Defaults
            to `1e-3`.
        nesterov: Bool. Whether to apply Nesterov momentum. Defaults to `False`.
        momentum_correction: Bool. Whether the velocity accumulates gradients without the learning rate: `velocity =
            momentum * velocity - ratio * (...)` and `w = w + learning_rate * velocity`. Then a change of the rate
            applies to the whole step at once. Defaults to `False`, as in the paper.
        exclude: Names of variables, the last parts of their paths, that have no ratio and no weight decay. Defaults to
            `None`: `"bias"`, `"beta"`, `"gamma"`, `"scale"`, and all variables with at most one dimension.
            `exclude_from_weight_decay()` excludes more, also from the ratio.
        clipnorm: Float. See `keras.optimizers.Optimizer`, as for the following arguments.
        clipvalue: Float.
        global_clipnorm: Float.
        use_ema: Bool.
        ema_momentum: Float.
        ema_overwrite_frequency: Int.
        loss_scale_factor: Float.
        gradient_accumulation_steps: Int.
        name: String. Defaults to `"lars"`.
        **kwargs: Other arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> model.compile(easyscale.optimizers.LARS(3.2, weight_decay=1e-4), "mse")

    Reference: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        nesterov: bool = False,
        momentum_correction: bool = False,
        exclude: Sequence[str] | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str = "lars",
        **kwargs: Any,
    ):
        if not is_number(momentum, 0) or momentum > 1:
            raise ValueError(f"`momentum` must be a number from 0 to 1. Received: {momentum=}")
        if weight_decay is not None and not is_number(weight_decay, 0):
            raise ValueError(f"`weight_decay` must be a number of 0 or more. Received: {weight_decay=}")
        if not is_number(trust_coefficient, above=0):
            raise ValueError(f"`trust_coefficient` must be a number above 0. Received: {trust_coefficient=}")
        if isinstance(exclude, str):
            raise ValueError(f"`exclude` must be a list of names. Received: {exclude=}. Write [{exclude!r}]")
        super().__init__(
            learning_rate=learning_rate,
            name=name,
            weight_decay=weight_decay or 0.0,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            loss_scale_factor=loss_scale_factor,
            gradient_accumulation_steps=gradient_accumulation_steps,
            **kwargs,
        )
        self.momentum, self.trust_coefficient, self.nesterov = momentum, trust_coefficient, nesterov
        self.momentum_correction = momentum_correction
        self.exclude = None if exclude is None else list(exclude)

    def build(self, variables: list) -> None:
        """Create a velocity for each variable."""
        if not self.built:
            super().build(variables)
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        """Update one weight."""
        rate = keras.ops.cast(learning_rate, variable.dtype)
        gradient = keras.ops.cast(gradient, variable.dtype)
        momentum = keras.ops.cast(self.momentum, variable.dtype)
        number = self._get_variable_index(variable)
        if self._is_scaled(self._trainable_variables[number]):  # the Keras variable: TensorFlow's has a different name
            decay = self.weight_decay or 0.0
            norm, gradient_norm = _norm(variable), _norm(gradient)
            ratio = keras.ops.divide_no_nan(self.trust_coefficient * norm, gradient_norm + decay * norm)
            ratio = keras.ops.where((norm > 0) & (gradient_norm > 0), ratio, keras.ops.ones_like(ratio))
            decay = keras.ops.cast(decay, variable.dtype)
            gradient = keras.ops.cast(ratio, variable.dtype) * (gradient + decay * variable)
        if not self.momentum_correction:
            gradient = rate * gradient
        velocity = self._velocities[number]
        self.assign(velocity, momentum * velocity - gradient)
        step = momentum * velocity - gradient if self.nesterov else velocity
        self.assign_add(variable, rate * step if self.momentum_correction else step)

    def _is_scaled(self, variable: keras.Variable) -> bool:
        if not self._use_weight_decay(variable):
            return False
        if self.exclude is None:
            return len(variable.shape) > 1 and variable.name not in _EXCLUDED
        return variable.name not in self.exclude

    def _apply_weight_decay(self, variables: list) -> None:
        pass  # already in the gradients

    def get_config(self) -> dict:
        names = ("momentum", "trust_coefficient", "nesterov", "momentum_correction", "exclude")
        return super().get_config() | {name: getattr(self, name) for name in names}


def _norm(values: Any) -> Any:
    values = keras.ops.convert_to_tensor(values)
    values = keras.ops.cast(values, keras.backend.result_type(values.dtype, "float32"))  # squares overflow float16
    return keras.ops.sqrt(keras.ops.sum(keras.ops.square(values)))
