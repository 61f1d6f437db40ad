"""Non-trainable weights that custom layers assign: codebooks, queues, moving averages.

Each worker assigns them from its own part of the batches. At the end of an epoch all workers get the same values, so
that validation, saving and prediction use one model. The weight's `aggregation` selects these values, as in Keras's own
distribution: with `"mean"` it is averaged in each step already; otherwise it is the chief's.
"""

import warnings

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.communicator import Communicator
from easyscale.errors import EasyScaleWarning
from easyscale.step.equality import fingerprint, name_of
from easyscale.training.parts.metrics import average

__all__ = ["OwnState", "averaged_in_steps"]


def averaged_in_steps(model: keras.layers.Layer) -> list[keras.Variable]:
    """Return the weights to average over workers, those of `add_weight(aggregation="mean", trainable=False)`."""
    return [
        variable
        for variable in model.non_trainable_variables
        if variable.aggregation == "mean" and keras.backend.is_float_dtype(variable.dtype)
    ]


class OwnState:
    """Makes non-trainable weights equal on all workers, and warns about those that differed and have no `aggregation`.

    Args:
        model: The model.
        communicator: The `Communicator`.
    """

    def __init__(self, model: keras.Model, communicator: Communicator):
        self._model, self._communicator = model, communicator
        self._told: set[str] = set()

    def end_epoch(self) -> None:
        """Overwrite weights that differ with their mean, or with the chief's. All workers must call this."""
        variables = [
            variable
            for variable in self._model.non_trainable_variables
            if variable.name != "seed_generator_state" and np.dtype("O") != backends.view_of(variable).dtype
        ]
        prints = self._communicator.all_gather_rows(fingerprint(backends.get(), variables))
        workers = prints[: self._communicator.workers]
        different = [variables[index] for index in np.flatnonzero((workers != workers[0]).any(axis=0))]
        means = [variable for variable in different if variable.aggregation == "mean"]
        for variable, mean in zip(means, average(means, self._communicator), strict=True):
            variable.assign(mean.astype(backends.view_of(variable).dtype))
        for variable in different:
            if variable.aggregation != "mean":
                value = np.array(backends.view_of(variable), order="C")
                self._communicator.broadcast(value.reshape(-1).view(np.uint8))
                variable.assign(value)
        undeclared = [name_of(variable) for variable in different if variable.aggregation == "none"]
        if self._communicator.is_chief and not self._told.issuperset(undeclared):
            self._told.update(undeclared)
            self._warn(undeclared)

    def _warn(self, names: list[str]) -> None:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warnings.warn(
            "non-trainable weights must be the same on all workers. Received: "
            f"`{names[0]}`{others}, which a layer assigns from each worker's own samples. At the end of each epoch all "
            "workers get the chief's value. Create it by `add_weight(..., aggregation='mean')` to average it in each "
            "step, or with aggregation='only_first_replica' to keep the chief's value without this warning",
            EasyScaleWarning,
            stacklevel=2,
        )
