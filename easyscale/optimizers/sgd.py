"""SGD with momentum correction: the velocity does not contain the learning rate."""

from typing import Any

import keras

__all__ = ["SGD"]


@keras.saving.register_keras_serializable(package="easyscale")
class SGD(keras.optimizers.SGD):
    """Keras's SGD with momentum correction: the velocity accumulates gradients, not steps.

        velocity = momentum * velocity - g
        w = w + learning_rate * velocity

    Keras's own velocity includes the learning rate, so after a change of the rate (a warm-up, a schedule) steps keep
    the old size for a while. At a constant rate both are the same. Goyal et al. multiply that velocity by `new_rate /
    old_rate`, which is equivalent to this. With Nesterov momentum, the step is
    `learning_rate * (momentum * velocity - g)`.

    Args:
        learning_rate: See `keras.optimizers.SGD`, as for all arguments. Defaults to `0.01`.
        momentum: Float, from 0 to 1. Defaults to `0.9`.
        options: `nesterov`, `weight_decay`, `clipnorm`, `name`, ...

    Example:

    >>> rate = easyscale.scaled_lr(0.1, base_batch=256, batch=8192)
    >>> optimizer = easyscale.optimizers.SGD(easyscale.optimizers.schedules.Warmup(rate, 500, start=0.1))

    Reference: Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 3.
    """

    def __init__(self, learning_rate: Any = 0.01, momentum: float = 0.9, **options: Any):
        super().__init__(learning_rate=learning_rate, momentum=momentum, **options)

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        """Update one weight."""
        if self.momentum == 0:
            super().update_step(gradient, variable, learning_rate)
            return
        rate = keras.ops.cast(learning_rate, variable.dtype)
        gradient = keras.ops.cast(gradient, variable.dtype)
        momentum = keras.ops.cast(self.momentum, variable.dtype)
        velocity = self.momentums[self._get_variable_index(variable)]
        self.assign(velocity, momentum * velocity - gradient)
        self.assign_add(variable, rate * (momentum * velocity - gradient if self.nesterov else velocity))
