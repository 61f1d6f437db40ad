"""Models of which each rank has a part: activations travel, weights stay where they are."""

from easyscale.parallel.pipeline.pipeline import Pipeline
from easyscale.parallel.split.split import Split

__all__ = ["Pipeline", "Split"]
