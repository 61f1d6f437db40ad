"""The samples of a step, and conversion of a checkpoint's position in the data to batches of another size."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from easyscale.communicator import Communicator
from easyscale.keras_internals import inputs_of, last_batch_of
from easyscale.training.keras_fit import KERAS_BATCH, locals_of_fit

__all__ = ["local_batch", "position_among", "samples_of_step", "sizes"]

_ARRAYS, _DATASET = "arrays", "dataset"


def local_batch(model: keras.Model, communicator: Communicator) -> dict[str, int]:
    """Return the samples in a batch of this worker's `fit()`, by their source; empty if only the data knows it."""
    given = locals_of_fit(model)
    x, is_server = given.get("x"), communicator.is_server
    if communicator.membership.is_elastic:  # its workers take other parts of a batch when some have failed
        return {}
    if inputs_of(x):
        size = last_batch_of(x)
        return {} if size is None else {_DATASET: 0 if is_server else size}
    leaves = keras.tree.flatten(x)
    if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
        return {}
    return {_ARRAYS: 0 if is_server else int(given.get("batch_size") or KERAS_BATCH)}


def samples_of_step(model: keras.Model, communicator: Communicator) -> str:
    """Return the workers of this `fit()` and the samples of their steps, such as '2 workers x batch 64'.

    A dataset's batches may be divided afterwards, so the samples are those of arrays only.
    """
    workers, batch = communicator.workers, local_batch(model, communicator).get(_ARRAYS)
    who = f"{workers} worker{'s' * (workers > 1)}"
    return f"{who} x batch {batch} = {workers * batch} samples a step" if batch else who


def sizes(before: Sequence[Mapping[str, int]], now: Sequence[Mapping[str, int]]) -> tuple[int, int] | None:
    """Return two numbers in the ratio of the global batches before and now; `None` if it is not known.

    A dataset's batches may be one worker's or, if divided afterwards, those of all. With the same number of
    ranks, the ratio is the same either way.

    Args:
        before: For each rank, the result of `local_batch` there.
        now: The same, for the current ranks.

    Example:

    >>> sizes([{"arrays": 6}, {"arrays": 6}], [{"arrays": 4}, {"arrays": 4}, {"arrays": 4}])
    (12, 12)
    """
    for source in [_ARRAYS, _DATASET][: 1 + (len(before) == len(now))]:
        if all(source in batch for batch in (*before, *now)):
            totals = sum(batch[source] for batch in before), sum(batch[source] for batch in now)
            return totals if all(totals) else None
    return None


def position_among(positions: Sequence[Mapping[str, Any]], before: int, now: int) -> tuple[dict[str, Any], int]:
    """Convert the ranks' common position in the data to batches of another size.

    Also return the number of samples that are trained on again: those of the batch in which the position lies.

    Args:
        positions: For each rank, the result of `DataPosition.state`. One without more data is behind the others.
        before: Int. The samples in a batch when the position was counted.
        now: Int. The samples in a batch from now on.

    Example:

    >>> position_among([{"iterators": 1, "batches": 5, "calls": 5}], before=12, now=8)
    ({'iterators': 1, 'batches': 7, 'calls': 7}, 4)
    """
    furthest = max(positions, key=lambda position: (position["iterators"], position["batches"]))
    batches, rest = divmod(furthest["batches"] * before, now)
    return {**furthest, "batches": batches, "calls": furthest["calls"] * before // now}, rest
