"""Wrapping of a model's optimizers in distributed ones."""

import functools
from collections.abc import Callable, Iterator

import keras

from easyscale.communicator.data_axis import DataAxis
from easyscale.optimizer import DistributedOptimizer

__all__ = ["wrap_all"]


def wrap_all(model: keras.Model, options: dict, made: list[DistributedOptimizer]) -> list[DistributedOptimizer]:
    """Wrap the optimizers of a model in `DistributedOptimizer`s with these options; return them.

    They are those among its attributes, and in lists and dicts among these.

    Args:
        model: The model.
        options: Dict. Arguments of `DistributedOptimizer`.
        made: List. The wrappers that were made for the model before; new ones are added to it.
    """
    optimizers: list[DistributedOptimizer] = []
    of_found: dict[int, DistributedOptimizer] = {}  # by `id`: one may be an attribute and in a list
    for value, replace in [*_found(model)]:
        by_hand = not any(value is optimizer for optimizer in made)
        wrapped = of_found[id(value)] = of_found.get(id(value)) or _wrap(value, options, by_hand)
        if wrapped is not value:
            made.append(wrapped)
            replace(wrapped)
        if not any(wrapped is other for other in optimizers):
            optimizers.append(wrapped)
    return optimizers


def _found(model: keras.Model) -> Iterator[tuple[keras.optimizers.Optimizer, Callable[[DistributedOptimizer], None]]]:
    """Yield each optimizer, and a function that puts another one in its place."""
    for name, value in sorted(vars(model).items()):
        if isinstance(value, keras.optimizers.Optimizer):
            yield value, functools.partial(setattr, model, name)
        elif isinstance(value, (list, dict)) and not name.startswith("_self_"):  # TensorFlow's, of what it tracks
            keys = range(len(value)) if isinstance(value, list) else [*value]
            for key in keys:
                if isinstance(value[key], keras.optimizers.Optimizer):
                    yield value[key], functools.partial(value.__setitem__, key)


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
