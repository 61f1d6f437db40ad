"""Moving averages of weights (`use_ema`), of which each stage's optimizer has its own."""

from collections.abc import Callable

import keras

from easyscale.training.pipelined.optimizer import StageOptimizer
from easyscale.training.pipelined.own_stage import OwnStage
from easyscale.training.pipelined.whole_model import WholeModel
from easyscale.update.accumulated import unscaled

__all__ = ["Averages"]


class Averages:
    """Replaces weights by their averages when Keras requests it: as `fit()` ends, before its callbacks' `on_train_end`.

    Keras calls the model's optimizer for this, which has the averages of all weights only after the stages have been
    gathered. So each stage does it for its own weights. Averages that a `SwapEMAWeights` has left in the model's
    optimizer are returned to the stage's optimizer before training goes on. Without `use_ema` all this does nothing.

    Args:
        model: The model.
        optimizer: The `StageOptimizer` of this rank's stage.
        whole: The `WholeModel`, or the `OwnStage` if no rank has the whole model.
        variables: List of the variables that this rank's stage trains.
        share: Function. Sends weights that several stages use from the one that trains them to the others.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: StageOptimizer,
        whole: WholeModel | OwnStage,
        variables: list[keras.Variable],
        share: Callable[[], None],
    ):
        self._model, self._optimizer, self._whole, self._variables = model, optimizer, whole, variables
        self._share = share
        self._inner = unscaled(model.optimizer)
        self.are_kept = bool(self._inner.use_ema)

    def begin(self) -> None:
        """Make Keras call this object, from now on."""
        if self.are_kept:  # bypasses Keras, which would track it
            object.__setattr__(self._inner, "finalize_variable_values", self._finalize)

    def release(self) -> None:
        """Free all but this rank's stage, as a step begins."""
        self._take_back()
        self._whole.release()
        self.begin()  # the model's optimizer may have been created again

    def end(self) -> None:
        """Make Keras call the model's optimizer again."""
        vars(self._inner).pop("finalize_variable_values", None)

    def _take_back(self) -> None:
        if isinstance(self._whole, WholeModel):
            self._whole.give_back(self._optimizer)

    def _finalize(self, variables: list[keras.Variable]) -> None:
        self._take_back()
        self._optimizer.distributed.inner_optimizer.finalize_variable_values(self._variables)
        self._share()
        if isinstance(self._whole, WholeModel) and self._whole.is_whole:  # other stages' weights have changed
            self._whole.gather_weights()
