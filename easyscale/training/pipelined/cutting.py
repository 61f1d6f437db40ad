"""The cut of a model into stages, the same on all ranks."""

import keras

from easyscale import backend as backends
from easyscale.communicator import Communicator
from easyscale.mesh import Mesh
from easyscale.parallel.pipeline.cut import Cut, cut_model
from easyscale.parallel.pipeline.layer_times import layer_times
from easyscale.parallel.pipeline.pipeline import Pipeline
from easyscale.progress import Activity
from easyscale.training.whole_batches import local_batch

__all__ = ["Cutting"]

_SAMPLES = 32  # the assumed batch size if only the data knows it


class Cutting:
    """Cuts a model as a `Pipeline` specifies. The chief measures the times of its layers once.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._times: list[float] | None = None

    def cut(self, pipeline: Pipeline, mesh: Mesh) -> Cut:
        """Return the `Cut` for a `fit()`. All ranks must call this.

        Args:
            pipeline: The `Pipeline`.
            mesh: The `Mesh`.

        Raises:
            ValueError: If the model cannot be cut like this.
        """
        if pipeline.cut == "time" and self._times is None:
            self._times = self._measure(pipeline, mesh.communicator)
        times = self._times if pipeline.cut == "time" else None
        return cut_model(self._model, pipeline.stages, pipeline.names, times)

    def _measure(self, pipeline: Pipeline, communicator: Communicator) -> list[float]:
        graph = cut_model(self._model, pipeline.stages).graph  # raises on all ranks if the model cannot be cut
        communicator.progress.activity = Activity.FIRST_STEP
        times: list[float] = []
        if communicator.is_chief:
            batch = next(iter(local_batch(self._model, communicator).values()), _SAMPLES)
            times = layer_times(graph, backends.get(), max(batch // pipeline.microbatches, 1))
        return communicator.all_gather_object(times)[0]
