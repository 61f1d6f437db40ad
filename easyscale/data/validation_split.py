"""`fit(validation_split=...)` of arrays that `shard` has divided: the workers hold out the samples of one process."""

import functools
import math
from collections.abc import Callable
from typing import Any

from easyscale.data import division
from easyscale.keras_internals import replace_validation_split
from easyscale.when_imported import when_imported

__all__ = ["install"]


@functools.cache
def install() -> None:
    """Patch Keras to split parts of arrays where it would split the full ones, also if it is imported later."""
    when_imported("keras", lambda: replace_validation_split(_by_whole))


def _by_whole(original: Callable) -> Callable:
    @functools.wraps(original)
    def split(arrays: Any, validation_split: float) -> Any:
        part = division.part_of(arrays)
        if part is None:
            return original(arrays, validation_split)
        trained = math.floor(part.total * (1.0 - validation_split))
        rows, local = (len(range(part.first, stop, part.size)) for stop in (trained, part.total))
        if 0 < rows < local:  # Keras rounds the number of training samples down
            validation_split = 1 - (rows + 0.5) / local
        trained_on, held_out = original(arrays, validation_split)
        return trained_on, division.note_part(held_out)

    return split
