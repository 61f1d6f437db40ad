"""Detection of the rank whose loss first becomes non-finite: one such batch makes all workers' weights NaN."""

import warnings

import keras

from easyscale.errors import EasyScaleWarning
from easyscale.replication.replication import Replication
from easyscale.training.parts.metrics import leaves

__all__ = ["FiniteLosses", "totals"]


_OF_PREDICTIONS = keras.metrics.MeanMetricWrapper


def totals(model: keras.Model) -> list[keras.Variable]:
    """Return variables that are finite as long as the losses of this epoch are: the totals of their means."""
    means = [leaf for metric in model.metrics for leaf in leaves(metric) if isinstance(leaf, keras.metrics.Mean)]
    return [mean.total for mean in means if mean.name.endswith("loss") and not isinstance(mean, _OF_PREDICTIONS)]


class FiniteLosses:
    """Reports, once per `fit()`, whose loss has become non-finite, from values that workers exchange anyway.

    With loss scaling it reports nothing: there, skipping such a step is normal.

    Args:
        replication: The `Replication`, a worker's view of all workers.
    """

    def __init__(self, replication: Replication):
        self._replication, self._has_warned = replication, False
        replication.steps.expect_finite()

    def check(self, steps: int) -> None:
        """Warn, on the chief, if a loss was not finite in one of the first `steps` steps of this `fit()`."""
        if self._has_warned or not (ranks := self._replication.steps.not_finite):
            return
        self._has_warned, size = True, self._replication.communicator.workers
        if not self._replication.communicator.is_chief:
            return
        membership = self._replication.communicator.membership
        numbers = ", ".join(str(membership.initial_ranks[rank]) for rank in ranks)
        whose = (
            f"of rank {numbers} of {membership.initial_size - membership.servers}: its data are the first to look at"
        )
        if len(ranks) == size > 1:
            whose = f"of all {size} ranks at once: their weights, or the last gradients of one, are not finite"
        warnings.warn(
            f"losses must be finite. Received: NaN or infinity in step {steps}, {whose}. Look for NaN in the data, "
            "clip gradients, or lower the learning rate",
            EasyScaleWarning,
            stacklevel=2,
        )
