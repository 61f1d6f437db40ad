"""Weights of which each worker owns a part."""

from collections.abc import Mapping, Sequence

import numpy as np

from easyscale.communicator import Communicator
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Spec, Variable, specs_of
from easyscale.step.interfaces import Gradient, Tensor
from easyscale.step.shared import Shared

__all__ = ["gather", "length_of", "total_of_squares"]


def gather(
    communicator: Communicator,
    shared: Shared,
    shards: Shards,
    parts: Mapping[int, Variable],
    variables: Sequence[Variable],
) -> None:
    """Give all workers the parts of `variables` that each has computed, in a step; see `GradientSync.gather`."""
    numbers, assign = list(parts), shared.backend.assign
    if communicator.size == 1:
        for number, part in parts.items():
            assign(variables[number], part)
        return

    def collect(*arrays: np.ndarray) -> list[np.ndarray]:
        wholes = shards.gather(dict(zip(numbers, arrays, strict=True)))
        whole = [wholes[number] for number in numbers]
        return whole + [wholes[number].reshape(-1)[shards.parts[number]] for number in numbers]

    assigned = [*(variables[number] for number in numbers), *parts.values()]
    values = shared.call(collect, list(parts.values()), specs_of(assigned))
    for variable, value in zip(assigned, values, strict=True):
        assign(variable, value)


def total_of_squares(communicator: Communicator, shared: Shared, tensors: Sequence[Gradient]) -> Tensor:
    """Return, for each gradient, the sum of its squares on all workers, in a step; a tensor of float64."""
    squares = shared.backend.sums_of_squares(tensors)
    if communicator.size == 1:
        return squares
    rows, spec = communicator.all_gather_rows, Spec((len(tensors),), np.dtype("float64"))
    return shared.call(lambda row: [rows(row).sum(axis=0)], [squares], [spec])[0]


def length_of(part: slice) -> tuple[int]:
    """Return the shape of a part of a flat variable."""
    return (part.stop - part.start,)
