"""Keras callbacks: `Distribute` makes `fit()` train one model on all workers."""

from easyscale.callbacks.distribute import Distribute
from easyscale.callbacks.exchange_metrics import ExchangeMetrics
from easyscale.callbacks.learning_rate_warmup import LearningRateWarmup

__all__ = ["Distribute", "ExchangeMetrics", "LearningRateWarmup"]
