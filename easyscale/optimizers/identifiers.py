"""Lookup of optimizers by name, configuration or instance."""

import keras

from easyscale.errors import unknown

__all__ = ["get"]


def get(
    identifier: keras.optimizers.Optimizer | str | dict, argument: str = "inner_optimizer"
) -> keras.optimizers.Optimizer:
    """Return an optimizer by identifier, as `keras.optimizers.get` does.

    Args:
        identifier: An optimizer, its name, or its configuration.
        argument: String. The user's argument, for error messages. Defaults to `"inner_optimizer"`.

    Raises:
        TypeError: If `identifier` is neither an optimizer, nor a name, nor a configuration.
        ValueError: If there is no optimizer with this name or configuration.

    Example:

    >>> get("sgd").get_config()["learning_rate"]
    0.009999999776482582
    """
    if not isinstance(identifier, keras.optimizers.Optimizer | str | dict):
        raise TypeError(
            f"`{argument}` must be an optimizer of Keras's, or its name. Received: {identifier!r}. "
            "Try `keras.optimizers.SGD(0.1)`"
        )
    if isinstance(identifier, dict):
        return _of_config(identifier, argument)
    if isinstance(identifier, str):
        return _of_name(identifier, argument)
    return identifier


def _of_name(name: str, argument: str) -> keras.optimizers.Optimizer:
    known = _known()
    if name.lower() in known:  # `keras.optimizers.get` does not know all of them
        return known[name.lower()]()
    try:
        return keras.optimizers.get(name)  # a custom one, registered by the user
    except (KeyError, TypeError, ValueError):
        raise ValueError(unknown(argument, name, sorted(known), " or an optimizer")) from None


def _of_config(config: dict, argument: str) -> keras.optimizers.Optimizer:
    try:
        return keras.optimizers.get(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{argument}` must be what `keras.optimizers.serialize` has returned. Received: {config!r} "
            f"({' '.join(str(error).split())[:200]}). Try `keras.optimizers.SGD(0.1)`"
        ) from None


def _known() -> dict[str, type[keras.optimizers.Optimizer]]:
    """Return Keras's optimizers by name, except those that wrap others."""
    base, around = keras.optimizers.Optimizer, {"LossScaleOptimizer", "MultiOptimizer"}
    classes = [cls for cls in vars(keras.optimizers).values() if isinstance(cls, type) and issubclass(cls, base)]
    return {cls.__name__.lower(): cls for cls in classes if cls is not base and cls.__name__ not in around}
