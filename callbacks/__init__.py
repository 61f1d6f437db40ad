"""Keras callbacks: `Distribute` makes a model's `fit()` that of all workers."""

from easyscale.callbacks.distribute import Distribute
from easyscale.callbacks.exchange_metrics import ExchangeMetrics
from easyscale.callbacks.learning_rate_warmup import LearningRateWarmup

__all__ = ["Distribute", "ExchangeMetrics", "LearningRateWarmup"]
