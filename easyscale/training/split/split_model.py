"""The split layers of a model, during its `fit()`s."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.communicator.data_axis import group_of
from easyscale.errors import EasyScaleWarning
from easyscale.optimizer import DistributedOptimizer
from easyscale.parallel import Split
from easyscale.parallel.split.group_layer import GroupLayer
from easyscale.parallel.split.kinds import Vocabulary
from easyscale.parallel.split.pair import pairs_of
from easyscale.parallel.split.passage import CallPart
from easyscale.parallel.split.sliced_variable import SlicedVariable
from easyscale.parallel.split.split_layer import SplitLayer
from easyscale.step.shared import Shared
from easyscale.training.current_step import workers_of_graph
from easyscale.training.keras_fit import is_overridden
from easyscale.training.split.group_batch import GroupBatch
from easyscale.training.split.vocabulary_loss import VocabularyLoss
from easyscale.training.whole_batches import local_batch

__all__ = ["SplitModel"]


class SplitModel:
    """Splits layers from the start of a `fit()`, once the model is built, to its end.

    Meanwhile the variables of these layers are this worker's slices, for the optimizer as well.

    Args:
        model: The model.
        split: `Split`.
        optimizer: The model's `DistributedOptimizer`. All workers must create this object.

    Attributes:
        split: The same.
        optimizer: The same.
        active: Bool. Whether layers are split now.
        summary: String. A description of the split layers: which, over which ranks, and how.
    """

    def __init__(self, model: keras.Model, split: Split, optimizer: DistributedOptimizer):
        self._model, self.split, self.optimizer = model, split, optimizer
        self._communicator, self._gradients = optimizer.workers.communicator, optimizer.workers.gradients
        self._shared = Shared.of(self._communicator, backends.get())
        self._group = group_of(self._communicator)
        self._batch = None if self._group is None else GroupBatch(self._group, self._shared)
        self._layers: list[SplitLayer] | list[GroupLayer] = []
        self._losses: list[VocabularyLoss] = []
        self._collect_on_all = self._gradients.on_state(self._collect)
        self.active, self.summary = False, ""
        self._is_split = False  # like `active`, except while one worker uses whole layers alone

    @property
    def _variables(self) -> list[SlicedVariable]:
        return [variable for layer in self._layers for variable in layer.variables]

    def begin(self) -> None:
        """Split the layers, unless they already are. All workers must call this, with the same weights.

        Raises:
            ValueError: If they cannot be split.
        """
        if self.active:
            return
        if not self._layers:
            self._layers = self._make_layers()
        for layer in self._layers:
            layer.add_to(self._gradients)
        for variable in self._variables:
            variable.slice()
        self._set_calls(is_split=True)
        self.active = True

    def _make_layers(self) -> list[SplitLayer] | list[GroupLayer]:
        communicator, group, backend = self._communicator, self._group, backends.get()
        samples = communicator.all_gather_object(sum(local_batch(self._model, communicator).values()))
        ranks = communicator.size if group is None else group.size
        kinds = self.split.kinds(self._model, ranks, samples=max(samples) or None)
        among = f"{ranks} workers" if group is None else f"{ranks} ranks of each of {communicator.size} groups"
        named = ", ".join(f"{kind.layer.name} by {kind.way}" for kind in kinds) or "no layer, which sends less"
        self.summary = f"split over {among}: {named}"
        self._losses = [VocabularyLoss(self._model, kind) for kind in kinds if isinstance(kind, Vocabulary)]
        if group is not None:
            # A custom step may use a layer's output in any way.
            is_own = any(is_overridden(self._model, name) for name in ("train_step", "test_step", "compute_loss"))
            pairs = [] if is_own else pairs_of(self._model, kinds)
            call, is_together = self._shared.call, lambda: self._shared.together
            return [
                GroupLayer(kind, group, call, backend, lambda: workers_of_graph() is not None, is_together, pairs)
                for kind in kinds
            ]
        return [
            SplitLayer(kind, number, communicator, self._shared, backend, workers_of_graph)
            for number, kind in enumerate(kinds)
        ]

    def batch(self, data: Any) -> Any:
        """Return the batch of this worker in a step, in the graph: that of its first rank."""
        return self._batch(data) if self._batch is not None and self._is_split else data

    def _set_calls(self, is_split: bool) -> None:
        self._is_split = is_split
        for layer in self._layers:
            layer.begin() if is_split else layer.end()
        for loss in self._losses:
            loss.begin() if is_split else loss.end()
        # Functions that Keras has already made call the layers as they were.
        self._model.test_function = self._model.predict_function = None

    def end(self, complete: bool) -> None:
        """Restore whole layers, if they are split.

        Args:
            complete: Bool. Whether all workers call this. If not, the others' slices are lost.
        """
        if not self.active:
            return
        for variable in self._variables:
            variable.unite(variable.collect() if complete else variable.unknown())
        self._gradients.slices.clear()
        self._gradients.groups.clear()
        self._set_calls(is_split=False)
        self.active = False
        if not complete:
            warnings.warn(
                "the weights of split layers are NaN where other workers had them when `fit()` was interrupted. Load "
                "them from a file before you go on",
                EasyScaleWarning,
                stacklevel=2,
            )

    def join(self, detail: int) -> None:
        """Take part in a call of a layer, on a worker without a batch in this step."""
        call_part = CallPart.of(detail)
        layer = self._layers[call_part.layer]
        assert isinstance(layer, SplitLayer)  # all ranks of a group have data, or none has
        layer.join(call_part)

    # Operations of one worker alone

    def _collect(self) -> list[np.ndarray]:
        return [variable.collect() for variable in self._variables]

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Return a context in which the layers of this worker are whole, whatever the others do in this `fit()`."""
        if not self.active:
            yield
            return
        wholes = self._collect_on_all()
        for variable, whole in zip(self._variables, wholes, strict=True):
            variable.show(whole)
        functions = self._model.test_function, self._model.predict_function
        self._set_calls(is_split=False)
        try:
            yield
        finally:
            for variable in self._variables:
                variable.hide()
            self._set_calls(is_split=True)
            self._model.test_function, self._model.predict_function = functions
