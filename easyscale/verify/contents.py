"""State of a model at the end of a step besides trained weights: metrics and non-trainable variables."""

import keras

from easyscale.keras_internals import layers_of
from easyscale.training.parts.metrics import leaves

__all__ = ["describe", "metrics_of", "states_of"]

_SEED = "seed_generator_state"  # Keras's name for the state of a seed generator


def metrics_of(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the metrics whose states are merged over ranks by sums or means."""
    return [leaf for metric in model.metrics for leaf in leaves(metric) if not hasattr(leaf, "merge_state")]


def describe(metric: keras.metrics.Metric) -> dict:
    """Return, for JSON, how a metric's states are merged, and whether they are the total and count of a mean."""
    return {
        "name": metric.name,
        "aggregations": [str(getattr(variable, "aggregation", "sum")) for variable in metric.variables],
        "is_mean": isinstance(metric, keras.metrics.Mean),
    }


def states_of(model: keras.Model) -> list[keras.Variable]:
    """Return the non-trainable variables that steps change, without those of frozen layers and seed generators."""
    frozen = {id(variable) for layer in layers_of(model) if not layer.trainable for variable in layer.variables}
    return [
        variable for variable in model.non_trainable_variables if id(variable) not in frozen and variable.name != _SEED
    ]
