"""The steps of a `fit()` by pipelines."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import keras_internals
from easyscale.backend.base import Backend
from easyscale.communicator import Request
from easyscale.errors import DesyncError
from easyscale.mesh import Mesh
from easyscale.parallel.pipeline.batch import Batch
from easyscale.parallel.pipeline.cut import Cut
from easyscale.parallel.pipeline.pipeline import Pipeline
from easyscale.parallel.pipeline.stage import Stage
from easyscale.step.context import StepContext
from easyscale.training.parts.assigned import assigned_in_steps
from easyscale.training.pipelined.all_stages import AllStages
from easyscale.training.pipelined.divisors import Divisors
from easyscale.training.pipelined.loss import Labels, LossOfStage, numbers_of
from easyscale.training.pipelined.optimizer import StageOptimizer
from easyscale.training.pipelined.split_stage import SplitStage

__all__ = ["PipelineSteps"]


class PipelineSteps:
    """Makes steps: the passes of this rank's stage, then the update of its weights.

    Only the first stage of a pipeline uses its data. The others iterate over theirs, of the same number of batches.

    Args:
        model: The model.
        pipeline: The `Pipeline`.
        mesh: The `Mesh`, with the axes `"data"` and `"model"`.
        cut: The `Cut`.
        optimizer: The `StageOptimizer` of this rank's stage.
        backend: The `Backend`.
        check_every: Int. The number of steps between comparisons of the pipelines' weights.
        split: `SplitStage`, of this rank's stage.

    Attributes:
        cut: The same.
        count: Int. The steps so far in this `fit()`.
        on_stage: Function. Called in the first step, when there are metrics. Defaults to `None`.
    """

    def __init__(
        self,
        model: keras.Model,
        pipeline: Pipeline,
        mesh: Mesh,
        cut: Cut,
        optimizer: StageOptimizer,
        backend: Backend,
        check_every: int,
        split: SplitStage,
    ):
        self._check_every, self._split = check_every, split
        self._model, self._pipeline, self.cut = model, pipeline, cut
        self._backend, self._optimizer = backend, optimizer
        self._world, self._communicator, self._mesh = mesh.communicator, mesh["model"], mesh
        part = cut.stages[self._communicator.rank]
        self._variables = part.trainable_variables
        layers = [layer for layer in part.layers if isinstance(layer, keras.layers.Layer)]
        self._moving = [variable for layer in layers for variable in assigned_in_steps(layer)]
        self._stage: Stage | None = None
        self._divisors: Divisors | None = None  # on the first stage
        self.on_stage: Callable[[], None] | None = None
        self._told: list = []  # descriptions of labels, by stage
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the numbers that a step returns
        self._all_stages = AllStages(model.optimizer, self._communicator, backend)
        self._update = backend.graph(self._apply)
        self.count = 0

    def restart(self) -> None:
        """Begin another `fit()` with the same stages: traced functions are reused."""
        self.count = 0

    @property
    def _is_first(self) -> bool:
        return self._communicator.rank == 0

    @property
    def _is_last(self) -> bool:
        return self._communicator.rank == self._communicator.size - 1

    def read(self, iterator: Iterator) -> tuple[Any, Labels, int]:
        """Return the inputs of the next batch, its labels, and its number of samples."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(next(iterator))
        samples = next(array.shape[0] for array in keras.tree.flatten(x) if array is not None)
        return x, Labels(y, sample_weight), int(samples)

    def refusal_of_first(self, samples: list[int]) -> str | None:
        """Return an error message if a worker's first batch has fewer samples than micro-batches, else `None`.

        Args:
            samples: For each rank of the world the samples of its first batch; 0 if it has none.
        """
        least = min(filter(None, samples), default=0)
        if least >= self._pipeline.microbatches:
            return None
        return (
            f"the first batch of a worker must have a sample for each micro-batch. Received: {least} samples, "
            f"microbatches={self._pipeline.microbatches}. Use fewer micro-batches, or a larger batch"
        )

    def step(self, batch: tuple[Any, Labels, int], samples: list[int], on_begin: Callable[[], None]) -> dict[str, Any]:
        """Make a step; return the results of the metrics so far.

        Args:
            batch: The result of `read`.
            samples: For each rank of the world the samples of its batch in this step.
            on_begin: Function. Called before the first pass, after all checks.
        """
        x, labels, own = batch
        ranks = len(samples) // self._mesh["data"].size  # ranks of a pipeline: all are neighbours
        first = self._mesh["data"].rank * ranks
        own_pipeline = samples[first : first + ranks]
        if len(set(own_pipeline)) > 1:
            raise DesyncError(
                "all stages of a pipeline must go through the same batches. Received: batches of "
                f"{', '.join(map(str, own_pipeline))} samples on ranks {first} to {first + ranks - 1}. Divide data by "
                "`easyscale.shard`, and give all ranks of a pipeline the same"
            )
        inputs = []
        if self._is_first or self.count == 0:
            given = keras_internals.standardized(self.cut.graph, x)
            _check_shapes(given, self.cut.graph)
            inputs = [keras.ops.convert_to_numpy(array) for array in given if self._is_first]
        stage = self._stage_for(labels, inputs) if self.count == 0 else self._begun
        whole = Batch(own, sum(samples[::ranks]), self._pipeline.microbatches)
        if self._divisors is not None:
            common = self._split.common([*inputs, *labels.arrays])
            inputs, targets = common[: len(inputs)], common[len(inputs) :]
            totals = self._divisors.totals(inputs, targets)
            whole = dataclasses.replace(whole, inputs=inputs, labels=targets, totals=totals)
        on_begin()
        gradients = stage.step(whole, float(keras.ops.convert_to_numpy(self._optimizer.scale())))
        logs, telling = self._tell_results()
        self._finish(stage, gradients, own)
        for request in telling:  # others may still be in their last backward pass
            request.wait()
        return logs

    def idle_step(self) -> None:
        """Take part in a step of other pipelines, because this one has no data left."""
        if self.count == 0:
            raise DesyncError(
                f"each pipeline must have data in the first step. Received: none on rank {self._world.rank}. Give "
                "`fit()` a sample for each worker, or more"
            )
        if self._divisors is not None:
            self._divisors.totals()
        self._finish(self._begun, self._begun.idle_step(), samples=0)

    @property
    def _begun(self) -> Stage:
        assert self._stage is not None  # created in the first step
        return self._stage

    def _finish(self, stage: Stage, gradients: list, samples: int) -> None:
        """Update this stage's weights; compare them if that is due."""
        self._update(gradients, keras.ops.convert_to_tensor(float(samples), "float64"))
        stage.tied.share()
        self.count += 1
        if self.count == 1 or self.count % self._check_every == 0:
            self.compare()

    def share_tied(self) -> None:
        """Send weights that several stages use from the one that trains them to the others, after the first step."""
        if self._stage is not None:
            self._stage.tied.share()

    def compare(self) -> None:
        """Raise `DesyncError` if the weights of any stage differ between pipelines. All ranks must call this."""
        differs = ""
        try:
            self._optimizer.distributed.workers.check_equal(self._variables, self.count)
        except DesyncError as error:
            differs = str(error)
        found = next(filter(None, self._world.all_gather_object(differs)), None)
        if found is not None:
            raise DesyncError(found)

    def _apply(self, gradients: list, weight: Any) -> None:
        optimizer = self._optimizer.distributed
        adjust = functools.partial(self._all_stages, self._optimizer.scale())
        with optimizer.workers.current_step.of(StepContext(weight, moving=self._moving, adjust=adjust)):
            optimizer.apply(gradients, self._variables)

    def _stage_for(self, labels: Labels, inputs: Sequence[np.ndarray]) -> Stage:
        """Return the stage for such labels, in the first step of a `fit()`; create it unless there is one for them."""
        told = self._communicator.all_gather_object(labels.described())
        if told[0] != told[-1]:
            raise DesyncError(
                f"all stages of a pipeline must go through the same data. Received: targets and weights of {told[0]} "
                f"on the first one, of {told[-1]} on the last. Run one script on all ranks"
            )
        if self._stage is None or told != self._told:
            self._stage, self._told = self._make_stage(labels, inputs), told
        if self.on_stage is not None:
            self.on_stage()
        return self._stage

    def _make_stage(self, labels: Labels, inputs: Sequence[np.ndarray]) -> Stage:
        batch, count = self._optimizer.distributed.workers.batch, 0
        if self._is_first:
            graph, data = self.cut.graph, self._mesh["data"]
            self._divisors = Divisors(self._model, graph, labels, data, self._backend, batch)
            count = self._divisors.totals(inputs, labels.arrays).size
        count = self._communicator.all_gather_object(count)[0]
        loss = LossOfStage(self._model, batch, labels)
        options = {"totals": count, "wrap": self._split.passes}
        return Stage(
            self.cut, self._communicator, self._pipeline.schedule, self._backend, loss, labels.forms, **options
        )

    def _tell_results(self) -> tuple[dict[str, Any], list[Request]]:
        """Send the results of the last stage's metrics to all stages; return them, and the pending requests."""
        results = numbers_of(self._model.get_metrics_result()) if self._is_last else {}
        if not self._shapes:
            all_shapes = self._communicator.all_gather_object(
                {name: list(number.shape) for name, number in results.items()}
            )
            self._shapes = {name: tuple(shape) for name, shape in all_shapes[-1].items()}
        row = np.concatenate([np.zeros(0), *(results[name].reshape(-1) for name in self._shapes if results)])
        last = self._communicator.size - 1
        if self._is_last:
            return _unpacked(row, self._shapes), [self._communicator.isend(row, stage) for stage in range(last)]
        row = np.zeros(sum(int(np.prod(shape)) for shape in self._shapes.values()))
        self._communicator.receive(row, last)
        return _unpacked(row, self._shapes), []


def _check_shapes(inputs: Sequence[Any], graph: keras_internals.Graph) -> None:
    """Raise `ValueError` if an input has another shape than the model specifies."""
    for array, tensor in zip(inputs, graph.inputs, strict=True):
        shape = tuple(array.shape)
        pairs = itertools.zip_longest(shape, tensor.shape, fillvalue=0)
        if any(size is not None and size != own for own, size in pairs):
            raise ValueError(
                f"inputs must have the shape that the model says. Received: {shape}, which is to be "
                f"{tuple(tensor.shape)}. Give `fit()` such data"
            )


def _unpacked(row: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    found, start = {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        value = row[start:stop].reshape(shape)
        found[name], start = float(value) if shape == () else value, stop
    return found
