"""What training scripts may differ in. A new feature of EasyScale is an entry in one of these files."""

from fuzz.dimension import Dimension
from fuzz.dimensions import data, distribution, fits, losses, models, optimizers, parallel, resume

__all__ = ["DIMENSIONS"]

# A dimension's `fits` looks at those before it.
DIMENSIONS: dict[str, Dimension] = {
    dimension.name: dimension
    for module in (distribution, parallel, models, losses, optimizers, data, fits, resume)
    for dimension in module.DIMENSIONS
}
