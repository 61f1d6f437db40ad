"""Recording of pipeline steps: the whole model after each step, gathered from its stages."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.training.parts.batch_normalization import unsynchronized
from easyscale.training.pipelined.distribution import PipelineDistribution
from easyscale.training.pipelined.loss import Labels
from easyscale.training.pipelined.steps import PipelineSteps
from easyscale.verify.contents import describe, metrics_of, states_of
from easyscale.verify.recorder import Recorder

__all__ = ["PipelineWatch"]


class PipelineWatch:
    """Records steps from outside of the graphs, because each stage has a separate one.

    The last stage computes the metrics. For the comparison the first stage records them, and the others record zeros.

    Args:
        recorder: `Recorder`. Stores the records.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._batch: list[np.ndarray] = []

    def read(self, original: Callable, steps: PipelineSteps, iterator: Iterator) -> tuple[Any, Labels, int]:
        """Keep the samples of the next step."""
        x, labels, samples = original(steps, iterator)
        inputs = [keras.ops.convert_to_numpy(tensor) for tensor in keras.tree.flatten(x) if tensor is not None]
        self._batch = [*inputs, *labels.arrays]
        return x, labels, samples

    def end_step(self, original: Callable, distribution: PipelineDistribution) -> None:
        """Record a step, also if only other pipelines have data. Collective: all ranks call this."""
        original(distribution)
        distribution.bring_together()
        model, stages, recorder = distribution.model, distribution.stages, self._recorder
        weights = model.trainable_variables
        recorder.describe_optimizer(0, model.optimizer.name, [variable.path for variable in weights])
        recorder.update(0, *map(backends.view_of, weights))
        if distribution.is_first and self._batch:
            recorder.batch(*self._batch)
        self._batch = []
        for name in unsynchronized(model):
            recorder.note("unsynchronized", name)
        metrics, states = metrics_of(model), states_of(model)
        values = [backends.value_of(variable).tolist() for metric in metrics for variable in metric.variables]
        of_all = stages.all_gather_object([[describe(metric) for metric in metrics], values])
        descriptions, values = of_all[-1]
        number = recorder.describe_model(descriptions, [variable.path for variable in states])
        arrays = [np.array(value, "float64") * distribution.is_first for value in values]
        recorder.end_step(number, *arrays, *map(backends.view_of, states))
