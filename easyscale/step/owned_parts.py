"""Weights of which each worker owns a part."""

from collections.abc import Mapping, Sequence

import numpy as np

from easyscale.communicator import Communicator
from easyscale.communicator.data_axis import group_of
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Spec, Variable, specs_of
from easyscale.step.context import Gradient, Tensor
from easyscale.step.shared import Shared
from easyscale.timeline import Part

__all__ = ["gather", "length_of", "total_of_squares"]


def gather(
    communicator: Communicator,
    shared: Shared,
    shards: Shards,
    parts: Mapping[int, Variable],
    variables: Sequence[Variable],
    stay: bool = False,
) -> None:
    """Give all workers the parts of `variables` that each has computed, in a step; see `Gradients.gather`.

    What is on a GPU stays there with `stay`, if the exchange of `shards` is for that.
    """
    numbers, assign = list(parts), shared.backend.assign
    if communicator.size == 1:
        for number, part in parts.items():
            assign(variables[number], part)
        return

    def collect(*arrays: np.ndarray) -> list[np.ndarray]:
        shared.timeline.to(Part.GATHER)
        wholes = shards.gather(dict(zip(numbers, arrays, strict=True)))
        whole = [wholes[number] for number in numbers]
        shared.timeline.to(Part.OTHER)
        return whole + [wholes[number].reshape(-1)[shards.parts[number]] for number in numbers]

    assigned = [*(variables[number] for number in numbers), *parts.values()]
    values = shared.call(collect, list(parts.values()), specs_of(assigned), len(parts) if stay else 0)
    for variable, value in zip(assigned, values, strict=True):
        assign(variable, value)


def total_of_squares(
    communicator: Communicator, shared: Shared, tensors: Sequence[Gradient], in_groups: Sequence[bool] = ()
) -> Tensor:
    """Return, for each gradient, the sum of its squares on all workers, in a step; a tensor of float64.

    Args:
        communicator: The `Communicator`.
        shared: Its `Shared`.
        tensors: The gradients, or this rank's parts of them.
        in_groups: For each of them, whether it is that of a slice, of which the other ranks of its group have others.
            Defaults to none.
    """
    squares, group, among = shared.backend.sums_of_squares(tensors), group_of(communicator), np.array(in_groups, bool)
    if communicator.size == 1 and not among.any():
        return squares

    def total(row: np.ndarray) -> list[np.ndarray]:
        before = shared.timeline.to(Part.EXCHANGE)
        sums = communicator.all_gather_rows(row).sum(axis=0)
        if group is not None and among.any():
            sums[among] = group.all_gather_rows(sums[among]).sum(axis=0)
        shared.timeline.to(before)
        return [sums]

    return shared.call(total, [squares], [Spec((len(tensors),), np.dtype("float64"))])[0]


def length_of(part: slice) -> tuple[int]:
    """Return the shape of a part of a flat variable."""
    return (part.stop - part.start,)
