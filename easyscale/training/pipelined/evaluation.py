"""An `evaluate()` by pipelines: each rank has the whole model, and the data of its pipeline."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from easyscale import separate
from easyscale.communicator import Communicator
from easyscale.data import division
from easyscale.keras_internals import OF_FIT
from easyscale.optimizer import DistributedOptimizer
from easyscale.step.agreement import Purpose
from easyscale.training.current_step import workers_of_step
from easyscale.training.fit_progress import FitProgress
from easyscale.training.meetings import Meetings
from easyscale.training.model_step import run_step
from easyscale.training.parts import metrics

__all__ = ["Evaluation"]


class Evaluation:
    """Evaluates on several pipelines: losses and metrics are those of the data of all.

    Ranks of one stage, one in each pipeline, evaluate together. The cost is that of workers with whole models: a few
    numbers for each batch if a loss is not a mean over samples, and the metrics' states once.

    Args:
        model: The model.
        communicator: The `Communicator` of the ranks that have the same stage.
        options: Dict. Arguments of `DistributedOptimizer`.

    Attributes:
        is_together: Bool. Whether all ranks are evaluating now.
    """

    def __init__(self, model: keras.Model, communicator: Communicator, options: Mapping[str, Any]):
        self._model, self._communicator = model, communicator
        self._optimizer = DistributedOptimizer("sgd", communicator=communicator, **options)
        self._meetings = Meetings([self._optimizer], FitProgress(self._optimizer.workers))
        self.is_together = self._was_together = self._has_part = False
        model.test_function = None  # it may have been made before this

    def begin(self) -> None:
        """Start an evaluation of all ranks."""
        self.is_together = self._was_together = True
        self._optimizer.workers.steps.begin(1, together=True, may_be_whole=not self._has_part)

    def end(self) -> None:
        """End an evaluation of all ranks."""
        self.is_together = False
        self._optimizer.workers.steps.begin(0, together=False)

    def run(self, evaluate: Callable, *args: Any, **kwargs: Any) -> Any:
        """Return `evaluate(*args, **kwargs)`, the model's own; warn if data was divided but results were not merged."""
        self._was_together, self._has_part = False, division.is_part(kwargs.get("x", args[0] if args else None))
        result = evaluate(*args, **kwargs)
        if self._has_part and not (self._was_together or OF_FIT in kwargs) and self._communicator.is_chief:
            separate.warn_of_evaluation()
        return result

    def step(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Return `step(data)`, the model's own `test_step`, with losses over the data of all pipelines."""
        if self._communicator.size == 1 or workers_of_step() is not None:  # the model is now trained in another way
            return step(data)
        return run_step(step, data, self._model, [self._optimizer])

    def merge(self, logs: Mapping[str, Any]) -> dict:
        """Merge the metrics of all ranks after the last has ended; return the results. All ranks must call this."""
        self._meetings.reach(Purpose.END)
        return metrics.merge_logs(self._model, self._communicator, logs, may_be_whole=not self._has_part)
