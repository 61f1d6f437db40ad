"""Which tensors cross from one stage to another."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from easyscale.keras_internals import Graph, mask_of

__all__ = ["Crossing", "bytes_across", "check_crossing", "crossings_of"]


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A tensor that goes straight from the stage that makes it to one that needs it, and its gradient back.

    Attributes:
        tensor: The `KerasTensor`.
        source: Int. The stage that makes it. The first one has the model's inputs.
        target: Int. A stage that needs it. The last one needs the model's outputs.
        has_gradient: Bool. Whether its gradient comes back: some weight before it is trained.
        masks: Tuple of `KerasTensor`s that come to the same stage, whose mask it is. If it crosses for them alone, it
            comes from where the first is made. Empty if it is no mask, or only what a layer takes.
    """

    tensor: Any
    source: int
    target: int
    has_gradient: bool
    masks: tuple[Any, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.tensor.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Its type, as NumPy has it."""
        return _dtype(self.tensor)

    @property
    def nbytes(self) -> int:
        """The bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize


def _uses(graph: Graph) -> dict[int, tuple[Any, int, list[int]]]:
    """For each tensor, by identity: itself, the number of the call that makes it, -1 for inputs, and those that use it.

    The model's outputs, and their masks, are used by a call behind the last one.
    """
    uses: dict[int, tuple[Any, int, list[int]]] = {id(tensor): (tensor, -1, []) for tensor in graph.inputs}
    for number, node in enumerate(graph.nodes):
        for tensor in node.input_tensors:
            uses[id(tensor)][2].append(number)
        uses |= {id(tensor): (tensor, number, []) for tensor in node.outputs}
    for tensor in [*keras.tree.flatten(graph.outputs), *graph.masks]:
        if tensor is not None:
            uses[id(tensor)][2].append(len(graph.nodes))
    return uses


def bytes_across(graph: Graph) -> list[int]:
    """For each place before a call the bytes of a sample that would cross there."""
    across = np.zeros(len(graph.nodes) + 2, int)
    for tensor, made, used in _uses(graph).values():
        if used:
            nbytes = math.prod(size or 1 for size in tensor.shape[1:]) * _dtype(tensor).itemsize
            across[made + 1 : max(used) + 1] += nbytes
    return across[: len(graph.nodes) + 1].tolist()


def crossings_of(graph: Graph, stage_of: list[int], stages: int) -> list[Crossing]:
    """Return all crossings, in the order of the stages that make them, then of calls.

    Args:
        graph: The `Graph`.
        stage_of: For each call its stage.
        stages: Int. The number of stages.
    """
    learns = _learns(graph)
    crossings = []
    for tensor, made, used in _uses(graph).values():
        source = 0 if made < 0 else stage_of[made]
        targets = {stages - 1 if number == len(graph.nodes) else stage_of[number] for number in used} - {source}
        gradient = id(tensor) in learns and keras.backend.is_float_dtype(tensor.dtype)
        crossings += [Crossing(tensor, source, target, gradient) for target in sorted(targets)]
    return _with_masks(graph, stage_of, crossings)


def _with_masks(graph: Graph, stage_of: list[int], crossings: list[Crossing]) -> list[Crossing]:
    """Return crossings with those of masks: a layer reads the mask of a tensor that it is given from the tensor.

    One that crosses anyway, as what a layer of that stage takes, does not cross twice; nor does one of several tensors.
    """
    found = {(id(crossing.tensor), crossing.target): crossing for crossing in crossings}
    for crossing in crossings:
        if id(crossing.tensor) not in graph.masked[stage_of.index(crossing.target)]:
            continue
        mask = mask_of(crossing.tensor)
        key = id(mask), crossing.target
        if key not in found:
            mark = keras.KerasTensor(mask.shape, mask.dtype, name=f"mask_of_{crossing.tensor.name}")
            found[key] = Crossing(mark, crossing.source, crossing.target, False)
        found[key] = dataclasses.replace(found[key], masks=(*found[key].masks, crossing.tensor))
    return list(found.values())


def _learns(graph: Graph) -> set[int]:
    """Return the tensors, by identity, before which there is a weight that is trained."""
    found: set[int] = set()
    for node in graph.nodes:
        trains = bool(getattr(node.operation, "trainable_variables", ()))
        if trains or any(id(tensor) in found for tensor in node.input_tensors):
            found |= {id(tensor) for tensor in node.outputs}
    return found


def check_crossing(crossing: Crossing) -> None:
    """Raise `ValueError` if a tensor cannot cross: its rows have no fixed shape, or are no numbers."""
    tensor = crossing.tensor
    received = f"`{tensor.name}` of shape {tuple(tensor.shape)} from stage {crossing.source} to {crossing.target}"
    if getattr(tensor, "sparse", False) or getattr(tensor, "ragged", False):
        raise ValueError(f"what crosses a cut must be a dense tensor. Received: {received}. Cut at another layer")
    if crossing.dtype.hasobject:
        raise ValueError(f"what crosses a cut must be numbers. Received: {received}, of text. Cut behind what uses it")
    if not tensor.shape or tensor.shape[0] is not None or None in tensor.shape[1:]:
        raise ValueError(
            f"what crosses a cut must have a row of a fixed shape for each sample. Received: {received}. Cut at "
            "another layer, or give `keras.Input` the whole shape"
        )


def _dtype(tensor: Any) -> np.dtype:
    return np.dtype(object if tensor.dtype == "string" else tensor.dtype)
