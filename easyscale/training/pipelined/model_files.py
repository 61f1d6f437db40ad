"""Methods of a model trained by pipelines that write files."""

from collections.abc import Callable
from typing import Any

import keras

from easyscale.parallel.pipeline.deferred import is_deferred
from easyscale.training.pipelined.files import StagedFiles

__all__ = ["ModelFiles"]


class ModelFiles:
    """`save` and similar methods, for ranks with the whole model, or with only their stage.

    Args:
        model: The model.
        writes: Function. Returns whether this rank writes, if it has the whole model.

    Attributes:
        REPLACED: The methods of a model that those of the same name replace; these take the model's own one first.
        staged: `StagedFiles`. Defaults to `None`: each rank has the whole model when it writes.
    """

    REPLACED = ("save", "save_weights", "export")

    def __init__(self, model: keras.Model, writes: Callable[[], bool]):
        self._model, self._writes = model, writes
        self.staged: StagedFiles | None = None

    def save(self, original: Callable, *args: Any, **kwargs: Any) -> None:
        # In fit() all ranks come here, from custom callbacks; the file is written once.
        if self.staged is not None:
            self.staged.save(original, *args, **kwargs)
        elif self._writes():
            original(*args, **kwargs)

    save_weights = save

    def export(self, original: Callable, *args: Any, **kwargs: Any) -> None:
        if is_deferred(self._model):
            raise ValueError(
                "`export` needs all weights on the chief. Received: a model that was built in `scope()`. Call `save` "
                "on all ranks, and export what `keras.models.load_model` returns"
            )
        self.save(original, *args, **kwargs)

    def answer(self) -> None:
        """Serve the chief's callbacks, whose files may need tensors of the other stages."""
        if self.staged is not None:
            self.staged.answer_hooks()
