"""Models that are divided over ranks: activations travel, weights stay where they are."""

from easyscale.parallel.pipeline.pipeline import Pipeline
from easyscale.parallel.split.split import Split

__all__ = ["Pipeline", "Split"]
