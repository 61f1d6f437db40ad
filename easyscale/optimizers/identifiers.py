"""Optimizers by what users write for them."""

import keras

from easyscale.errors import unknown

__all__ = ["get"]


def get(
    identifier: keras.optimizers.Optimizer | str | dict, argument: str = "inner_optimizer"
) -> keras.optimizers.Optimizer:
    """Return the optimizer that `keras.optimizers.get` finds.

    Args:
        identifier: An optimizer, its name, or its configuration.
        argument: String. What it was given to, for messages of errors. Defaults to `"inner_optimizer"`.

    Raises:
        TypeError: If `identifier` is neither an optimizer, nor a name, nor a configuration.
        ValueError: If there is no optimizer of this name.

    Example:

    >>> get("sgd").get_config()["learning_rate"]
    0.009999999776482582
    """
    if not isinstance(identifier, keras.optimizers.Optimizer | str | dict):
        raise TypeError(
            f"`{argument}` must be an optimizer of Keras's, or its name. Received: {identifier!r}. "
            "Try `keras.optimizers.SGD(0.1)`"
        )
    try:
        return keras.optimizers.get(identifier)
    except ValueError:
        if not isinstance(identifier, str):
            raise
        raise ValueError(unknown(argument, identifier, _names(), " or an optimizer")) from None


def _names() -> list[str]:
    base = keras.optimizers.Optimizer
    classes = {name: cls for name, cls in vars(keras.optimizers).items() if isinstance(cls, type) and cls is not base}
    return sorted(name.lower() for name, cls in classes.items() if issubclass(cls, base))
