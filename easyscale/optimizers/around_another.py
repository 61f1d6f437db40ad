"""A wrapper that Keras and its callbacks can use like the inner optimizer."""

from collections.abc import Iterable
from typing import Any

import keras

__all__ = ["AroundAnother"]


class AroundAnother(keras.optimizers.Optimizer):
    """An optimizer with the variables, learning rate and hyperparameters of its `inner_optimizer`.

    Attributes:
        inner_optimizer: The wrapped optimizer. Keras's callbacks look it up by this name.
    """

    inner_optimizer: keras.optimizers.Optimizer

    def forward(self, hyperparameters: Iterable[str]) -> None:
        """Forward these attributes, on reads and writes, to the inner optimizer from now on."""
        self._hyperparameters = tuple(hyperparameters)
        for name in self._hyperparameters:
            self.__dict__.pop(name, None)  # set by the base class; it would shadow the inner one

    def build(self, variables: list) -> None:
        # For these two, the base class would create variables that the inner optimizer already has.
        local = dict.fromkeys(("use_ema", "gradient_accumulation_steps"))
        self.__dict__.update(local)
        super().build(variables)
        for name in local:
            self.__dict__.pop(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_hyperparameters", ()):
            setattr(self.inner_optimizer, name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "inner_optimizer" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.inner_optimizer, name)

    @property
    def variables(self) -> list:
        return self.inner_optimizer.variables  # without sharded variables

    @property
    def iterations(self) -> keras.Variable:
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    def scale_loss(self, loss: Any) -> Any:
        return self.inner_optimizer.scale_loss(loss)

    def exclude_from_weight_decay(self, var_list: list | None = None, var_names: list | None = None) -> None:
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: list) -> None:
        self.inner_optimizer.finalize_variable_values(var_list)

    def set_weights(self, weights: list) -> None:
        self.inner_optimizer.set_weights(weights)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        """Return what a `tf.train.Checkpoint` has of the inner optimizer, so that stock Keras can restore it."""
        return self.inner_optimizer._trackable_children(save_type, **kwargs)

    def __dir__(self) -> list[str]:
        # Keras saves every attribute that dir() lists. The inner optimizer is already saved in this one's place.
        return [name for name in super().__dir__() if name != "inner_optimizer"]
