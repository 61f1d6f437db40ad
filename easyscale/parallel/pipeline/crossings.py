"""The tensors that cross from one stage to another."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from easyscale.keras_internals import Graph, mask_of

__all__ = ["Crossing", "bytes_across", "check_crossing", "crossings_of"]


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A tensor that is sent directly from the stage that makes it to one that needs it, and its gradient back.

    Attributes:
        tensor: The `KerasTensor`.
        source: Int. The stage that makes it. The first one has the model's inputs.
        target: Int. A stage that needs it. The last one needs the model's outputs.
        has_gradient: Bool. Whether its gradient comes back: it depends on a trainable weight.
        masks: Tuple of the `KerasTensor`s received by the same stage whose mask it is. If it crosses only for these, it
            comes from the source of the first. Empty if it is not a mask, or is only a layer's input.
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
        """The NumPy dtype."""
        return _dtype(self.tensor)

    @property
    def nbytes(self) -> int:
        """The bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize


def _uses(graph: Graph) -> dict[int, tuple[Any, int, list[int]]]:
    """Return for each tensor, by identity: the tensor, the number of the call that makes it, and of those that use it.

    Inputs are made by call -1. The model's outputs, and their masks, are used by a call after the last one.
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
    """Return, for each position before a call, the bytes per sample that would cross there."""
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
        stage_of: The stage of each call.
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
    """Add crossings of masks: a layer reads the mask of an input from the tensor.

    A mask crosses once, even if a layer of that stage also takes it as an input, or if several tensors have it.
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
    """Return the tensors, by identity, that depend on a trainable weight."""
    found: set[int] = set()
    for node in graph.nodes:
        trains = bool(getattr(node.operation, "trainable_variables", ()))
        if trains or any(id(tensor) in found for tensor in node.input_tensors):
            found |= {id(tensor) for tensor in node.outputs}
    return found


def check_crossing(crossing: Crossing) -> None:
    """Raise `ValueError` if a tensor cannot cross: its rows have no fixed shape, or are not numbers."""
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
