"""Each rank's own file for `tf.data.Dataset.cache(filename)`: TensorFlow locks it, and ranks cache other parts.

The name has the number of ranks, so that a job of another size does not read the parts of this one.
"""

import functools
import os
import sys
from typing import Any

from easyscale.when_imported import when_imported

__all__ = ["watch"]


def watch() -> None:
    """Patch TensorFlow in this rank as soon as it is imported."""
    when_imported("tensorflow", _divide)


def _divide() -> None:
    dataset_class = sys.modules["tensorflow"].data.Dataset
    original = dataset_class.cache

    @functools.wraps(original)
    def cache(dataset: Any, filename: Any = "", *args: Any, **kwargs: Any) -> Any:
        if isinstance(filename, (str, os.PathLike)) and os.fspath(filename):
            from easyscale import communicator

            if (ranks := communicator.get()).size > 1:
                filename = f"{os.fspath(filename)}.{ranks.rank}of{ranks.size}"
        return original(dataset, filename, *args, **kwargs)

    dataset_class.cache = cache
