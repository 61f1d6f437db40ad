"""Layers of a stage that are split over the ranks of the stage."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.mesh import Mesh
from easyscale.optimizer import DistributedOptimizer
from easyscale.parallel.pipeline.cut import Cut
from easyscale.parallel.pipeline.pipeline import Pipeline
from easyscale.parallel.split.group_layer import GroupLayer
from easyscale.parallel.split.kinds import Kind
from easyscale.parallel.split.pair import pairs_of
from easyscale.parallel.split.sliced_variable import SlicedVariable
from easyscale.step.shared import Shared
from easyscale.training.split.group_batch import of_first
from easyscale.update.choosing import check_slices

__all__ = ["SplitStage"]


class SplitStage:
    """Splits layers of this rank's stage in its steps. For a pipeline without `split` it does nothing.

    Args:
        model: The model. It is whole.
        cut: The `Cut`.
        pipeline: The `Pipeline`.
        mesh: The `Mesh`. It has the axis `"split"` if each stage has several ranks.
        optimizer: The `DistributedOptimizer` of this rank's stage.

    Attributes:
        summary: String. A description of the model's split layers; empty if there are none.

    Raises:
        ValueError: If they cannot be split.
    """

    def __init__(self, model: keras.Model, cut: Cut, pipeline: Pipeline, mesh: Mesh, optimizer: DistributedOptimizer):
        self._optimizer = optimizer
        self._graph: Any = None  # of the pass that is being traced
        self._are_slices, self.summary = False, ""
        self._layers: list[GroupLayer] = []
        self._group = mesh["split"] if "split" in mesh.axes else None
        if self._group is None or pipeline.split is None:
            return
        check_slices(optimizer.inner_optimizer, model.trainable_variables)  # even if a stage has none
        ranks = self._group.size
        kinds = pipeline.split.kinds(model, ranks, samples=None)
        stages = [_stage_of(kind, cut) for kind in kinds]
        named = ", ".join(f"{kind.layer.name} by {kind.way}" for kind in kinds)
        self.summary = f"split over {ranks} ranks of each stage: {named}"
        own = [kind for kind, stage in zip(kinds, stages, strict=True) if stage == mesh["model"].rank]
        pairs, backend = pairs_of(model, own), backends.get()
        call = Shared.of(optimizer.workers.communicator, backend).call
        self._layers = [
            GroupLayer(kind, self._group, call, backend, self._is_in_pass, lambda: True, pairs) for kind in own
        ]

    @property
    def _variables(self) -> list[SlicedVariable]:
        return [variable for layer in self._layers for variable in layer.variables]

    def _is_in_pass(self) -> bool:
        return self._graph is not None and self._optimizer.workers.batch.graph() is self._graph

    def passes(self, run: Callable[[list], list]) -> Callable[[list], list]:
        """Return a function that computes a pass of the stage, in the graph, with its layers split."""

        def split(tensors: list) -> list:
            self._graph = self._optimizer.workers.batch.graph()
            try:
                return run(tensors)
            finally:
                self._graph = None

        return split if self._layers else run

    def common(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the arrays of the first of the ranks that have this stage: others may have shuffled differently."""
        return list(arrays) if self._group is None else of_first(self._group, arrays)

    def begin(self) -> None:
        """Split the layers from now on. Weights must be whole, and equal on all ranks."""
        for layer in self._layers:
            layer.add_to(self._optimizer.workers.gradients)
        for variable in self._variables:
            variable.slice()
        self._set_calls(are_slices=True)

    def show(self) -> None:
        """Show whole layers on this rank, besides its slices. All ranks that have the stage must call this."""
        if self._are_slices:
            for variable in self._variables:
                variable.show(variable.collect())
            self._set_calls(are_slices=False)

    def hide(self) -> None:
        """Split the layers again, as a step begins."""
        if not self._are_slices:
            for variable in self._variables:
                variable.hide()
            self._set_calls(are_slices=True)

    def end(self, complete: bool) -> None:
        """Restore whole layers at the end of a `fit()`.

        Args:
            complete: Bool. Whether all ranks call this. If not, the others' slices are lost: they are NaN.
        """
        groups = self._optimizer.workers.gradients.groups
        if not groups:
            return
        if self._are_slices:
            for variable in self._variables:
                variable.show(variable.collect() if complete else variable.unknown())
            self._set_calls(are_slices=False)
        for variable in self._variables:
            variable.drop()
        groups.clear()

    def _set_calls(self, are_slices: bool) -> None:
        self._are_slices = are_slices
        for layer in self._layers:
            layer.begin() if are_slices else layer.end()


def _stage_of(kind: Kind, cut: Cut) -> int:
    """Return the stage that has a layer.

    Raises:
        ValueError: If several stages have it.
    """
    own = {id(variable) for variable in kind.layer.weights}
    stages = [stage.number for stage in cut.stages if own & set(map(id, stage.used))]
    if len(stages) > 1:
        raise ValueError(
            "a layer of a pipeline that is split must be on one stage. Received: "
            f"{type(kind.layer).__name__} '{kind.layer.name}' on stages {', '.join(map(str, stages))}. Cut the model "
            "elsewhere, or leave the layer out of the pattern"
        )
    return stages[0]
