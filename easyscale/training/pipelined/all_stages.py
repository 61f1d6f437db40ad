"""Operations of an optimizer on the gradients of all weights, over the stages of a pipeline."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from easyscale.backend.base import Backend
from easyscale.communicator import Communicator
from easyscale.update.accumulated import unscaled

__all__ = ["AllStages"]


class AllStages:
    """Clips by the norm over all stages, and makes all of them skip a step if one has to.

        norm = sqrt(sum over stages of |g|^2) / scale           g_clipped = g * min(global_clipnorm / norm, 1)

    The stages exchange the sums of their squares, 8 bytes each. The total is NaN or infinite if a gradient is: then all
    gradients become NaN. A `LossScaleOptimizer` then skips the step; others make all weights NaN, as on one process.

    Args:
        optimizer: The model's optimizer.
        communicator: The `Communicator` of the pipeline's stages.
        backend: The `Backend`.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, communicator: Communicator, backend: Backend):
        self._optimizer, self._communicator, self._backend = optimizer, communicator, backend
        self._call = backend.host_calls()

    def __call__(self, scale: Any, gradients: list, total_of_squares: Callable[[list], Any]) -> list:
        """Return the gradients for the update of this stage, in the graph. All stages must call this.

        Args:
            scale: Number or scalar tensor. The factor by which gradients are too large.
            gradients: Tensors or sparse rows: the means over pipelines, or this rank's parts of them.
            total_of_squares: Function. Returns, for each of them, the sum of squares of the whole gradient.
        """
        most = unscaled(self._optimizer).global_clipnorm
        if not most and not isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            return gradients
        squares = keras.ops.sum(total_of_squares(gradients))
        (total,) = self._call(self._over_stages, [squares], [((), np.dtype("float64"))])
        factor = 1.0 + (total - total)
        if not most:
            return [self._backend.scaled(gradient, factor) for gradient in gradients]
        norm = keras.ops.sqrt(total) / keras.ops.cast(scale, "float64")
        factor *= most / keras.ops.maximum(norm, most)
        # Keras makes sparse rows dense when it clips: an optimizer that squares them then squares their sum.
        return [gradient * keras.ops.cast(factor, gradient.dtype) for gradient in gradients]

    def _over_stages(self, squares: np.ndarray) -> list[np.ndarray]:
        rows = self._communicator.all_gather_rows(np.array([squares]))
        return [np.array(rows.sum())]
