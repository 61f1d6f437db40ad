"""Wrapping of a model's optimizers in distributed ones."""

import keras

from easyscale.communicator.data_axis import DataAxis
from easyscale.optimizer import DistributedOptimizer

__all__ = ["wrap_all"]


def wrap_all(model: keras.Model, options: dict, made: list[DistributedOptimizer]) -> list[DistributedOptimizer]:
    """Wrap every optimizer among the model's attributes in a `DistributedOptimizer` with these options; return them.

    Args:
        model: The model.
        options: Dict. Arguments of `DistributedOptimizer`.
        made: List. The wrappers that were made for the model before; new ones are added to it.
    """
    found = {name: value for name, value in vars(model).items() if isinstance(value, keras.optimizers.Optimizer)}
    optimizers: list[DistributedOptimizer] = []
    for name, value in sorted(found.items()):
        wrapped = _wrap(value, options, by_hand=not any(value is optimizer for optimizer in made))
        if wrapped is not value:
            made.append(wrapped)
            setattr(model, name, wrapped)
        if not any(wrapped is other for other in optimizers):
            optimizers.append(wrapped)
    return optimizers


def _made(optimizer: keras.optimizers.Optimizer, options: dict) -> DistributedOptimizer:
    made = DistributedOptimizer(optimizer, **options)
    made.is_by_hand = False
    return made


def _wrap(optimizer: keras.optimizers.Optimizer, options: dict, by_hand: bool) -> DistributedOptimizer:
    """Return `optimizer` as a `DistributedOptimizer` that is outside of any loss scaling.

    `compile()` puts a `LossScaleOptimizer` around the optimizer of a `mixed_float16` model. It skips a step whose
    gradients overflow, and all workers have to skip it together: so it must see the average.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = optimizer.inner_optimizer
        if isinstance(inner, DistributedOptimizer):
            if not isinstance(inner.inner_optimizer, keras.optimizers.LossScaleOptimizer):
                inner.take_inside(optimizer)
            optimizer = inner
    if not isinstance(optimizer, DistributedOptimizer):
        return _made(optimizer, options)
    if options["communicator"] is None and isinstance(optimizer.communicator, DataAxis):  # of an earlier fit()
        return _made(optimizer.inner_optimizer, options)
    if by_hand and isinstance(options["communicator"], DataAxis):
        raise ValueError(
            "where several ranks are one worker, `Distribute` makes the `DistributedOptimizer`. Received: one by hand. "
            "Pass the optimizer inside of it to `compile()`"
        )
    for name, value in options.items():
        if value is not None and value != getattr(optimizer, name):
            if not by_hand:  # wrapped in an earlier fit(), perhaps with other options
                return _made(optimizer.inner_optimizer, options)
            raise ValueError(
                f"`{name}` must be said once: the model's optimizer is already distributed, with {name}="
                f"{getattr(optimizer, name)!r}. Received: Distribute({name}={value!r}). Leave it out there"
            )
    return optimizer
