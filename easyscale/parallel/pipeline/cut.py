"""The assignment of a model's layers to stages."""

import dataclasses
import difflib
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from easyscale import keras_internals
from easyscale.parallel.pipeline.crossings import Crossing, bytes_across, check_crossing, crossings_of
from easyscale.parallel.pipeline.division import divide

__all__ = ["Cut", "StagePart", "Tied", "cut_model"]


@dataclasses.dataclass(frozen=True)
class Tied:
    """A weight that layers of several stages use. The first of these stages trains it, with the sum of all gradients.

    Attributes:
        variable: The variable.
        owner: Int. The stage that trains it.
        users: The other stages that use it.
    """

    variable: keras.Variable
    owner: int
    users: list[int]


@dataclasses.dataclass(frozen=True)
class StagePart:
    """The part of a model on one stage.

    Attributes:
        number: Int, from 0.
        nodes: List of the calls of layers, in order.
        layers: List of the layers and operations, each once.
        receives: List of the incoming `Crossing`s, in the order of stages, then of calls.
        sends: List of the outgoing `Crossing`s, in the same order.
        variables: List of the variables of its layers, except those that an earlier stage has as well.
        tied: List of all `Tied` weights of the model.
    """

    number: int
    nodes: list[Any]
    layers: list[Any]
    receives: list[Crossing]
    sends: list[Crossing]
    variables: list[keras.Variable]
    tied: list[Tied]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that it trains."""
        return [variable for variable in self.variables if variable.trainable]

    @property
    def used(self) -> list[keras.Variable]:
        """The variables that its layers use, including those of earlier stages."""
        return _variables(self.layers)

    @property
    def borrowed(self) -> list[keras.Variable]:
        """The variables that its layers use and an earlier stage trains."""
        return [tied.variable for tied in self.tied if self.number in tied.users]

    @property
    def weights(self) -> int:
        """The number of trainable weights."""
        return sum(math.prod(variable.shape) for variable in self.trainable_variables)


class Cut:
    """A model divided into stages.

    Args:
        graph: The `Graph` of the model.
        bounds: The number of each stage's first call, then the number of all calls.
        times: For each call, the seconds of its passes for a micro-batch. Defaults to `None`: not measured.

    Attributes:
        graph: The same.
        stages: List of `StagePart`.
        tied: List of the `Tied` weights.
    """

    def __init__(self, graph: keras_internals.Graph, bounds: Sequence[int], times: Sequence[float] | None = None):
        self.graph = graph
        self._seconds = None if times is None else [sum(times[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
        stage_of = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)).tolist()
        crossings = crossings_of(graph, stage_of, len(bounds) - 1)
        layers = [
            list({id(node.operation): node.operation for node in graph.nodes[start:stop]}.values())
            for start, stop in zip(bounds, bounds[1:], strict=False)
        ]
        users: dict[int, tuple[keras.Variable, list[int]]] = {}
        for number, of_stage in enumerate(layers):
            for variable in _variables(of_stage):
                users.setdefault(id(variable), (variable, []))[1].append(number)
        self.tied = [
            Tied(variable, first, others)
            for variable, (first, *others) in users.values()
            if others and variable.trainable
        ]
        self.stages = [
            StagePart(
                number,
                graph.nodes[bounds[number] : bounds[number + 1]],
                of_stage,
                receives=[crossing for crossing in crossings if crossing.target == number],
                sends=sorted(
                    (crossing for crossing in crossings if crossing.source == number),
                    key=lambda crossing: crossing.target,
                ),
                variables=[variable for variable, stages in users.values() if stages[0] == number],
                tied=self.tied,
            )
            for number, of_stage in enumerate(layers)
        ]

    def __str__(self) -> str:
        """Return a table with each stage's layers, weights, time, and bytes sent forward per sample."""
        rows: list[tuple[str, ...]] = [("stage", "layers", "weights", "ms", "sends for each sample")]
        for stage in self.stages:
            names = [layer.name for layer in stage.layers]
            shown = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)})"
            sent: dict[int, int] = {}
            for crossing in stage.sends:
                sent[crossing.target] = sent.get(crossing.target, 0) + crossing.nbytes
            sends = ", ".join(f"{nbytes:,} bytes to {target}" for target, nbytes in sent.items()) or "-"
            took = "" if self._seconds is None else f"{1000 * self._seconds[stage.number]:.2f}"
            rows.append((str(stage.number), shown, f"{stage.weights:,}", took, sends))
        if self._seconds is None:
            rows = [row[:3] + row[4:] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines += [
            f"`{tied.variable.path}` of stage {tied.owner} is also on {', '.join(map(str, tied.users))}: its gradient "
            "and value travel once a step"
            for tied in self.tied
        ]
        return "\n".join(line.rstrip() for line in lines)


def cut_model(
    model: keras.Model,
    stages: int | None = None,
    names: Sequence[str] | None = None,
    times: Sequence[float] | None = None,
) -> Cut:
    """Cut a Sequential or Functional model into stages.

    Args:
        model: The model. The shape of its inputs is known.
        stages: Int. The number of stages. The cut minimizes the weights of the largest stage, then the bytes that
            cross. Defaults to `None`: one more than there are names.
        names: The names of layers, each the last one of its stage. Defaults to `None`.
        times: The seconds of each call of a layer. If given, the cut minimizes the time of the slowest stage. Defaults
            to `None`.

    Raises:
        ValueError: If the model cannot be cut this way.

    Example:

    >>> layers = [keras.layers.Dense(64, name="a"), keras.layers.Dense(64, name="b"), keras.layers.Dense(1, name="c")]
    >>> print(cut_model(keras.Sequential([keras.Input((8,)), *layers]), stages=2))
    stage  layers       weights  sends for each sample
    0      a            576      256 bytes to 1
    1      b ... c (2)  4,225    -
    """
    graph = _graph_of(model)
    _check_batches(graph)
    bounds = _by_size(graph, stages or 1, times) if names is None else _by_names(graph, names)
    cut = Cut(graph, bounds, times)
    _check_moving(cut)
    for stage in cut.stages:
        for crossing in stage.receives:
            check_crossing(crossing)
    return cut


def _graph_of(model: keras.Model) -> keras_internals.Graph:
    name = f"{type(model).__name__} '{model.name}'"
    graph = keras_internals.graph_of(model)
    if graph is None and isinstance(model, keras.Sequential):
        raise ValueError(
            f"a model that is cut into stages must know its inputs. Received: {name}, which does not. "
            "Give it a `keras.Input(shape)` as its first layer"
        )
    if graph is None:
        raise ValueError(
            "a model that is cut into stages must be Sequential or Functional, so that its layers are known. "
            f"Received: {name}, a subclass with a `call` of its own. Build it as `keras.Model(inputs, outputs)`"
        )
    return graph


def _check_batches(graph: keras_internals.Graph) -> None:
    for tensor in graph.inputs:
        if not tensor.shape or tensor.shape[0] is not None:
            raise ValueError(
                "a model that is cut into stages must take batches of any size, of which micro-batches are parts. "
                f"Received: an input of shape {tuple(tensor.shape)}. Leave `batch_size` out of its `keras.Input`"
            )


def _variables(layers: Sequence[Any]) -> list[keras.Variable]:
    found = [variable for layer in layers for variable in getattr(layer, "variables", ())]
    return list({id(variable): variable for variable in found}.values())


def _new_weights(graph: keras_internals.Graph) -> list[int]:
    """Return, for each call, the number of trainable weights that no earlier call uses."""
    seen: set[int] = set()
    counts = []
    for node in graph.nodes:
        new = {
            id(variable): variable
            for variable in getattr(node.operation, "trainable_variables", ())
            if id(variable) not in seen
        }
        counts.append(sum(math.prod(variable.shape) for variable in new.values()))
        seen.update(new)
    return counts


def _by_names(graph: keras_internals.Graph, names: Sequence[str]) -> list[int]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`cut` must be a list of names of layers. Received: cut={names!r}. Write ['{names}']")
    last = {node.operation.name: number for number, node in enumerate(graph.nodes)}
    for name in names:
        if name not in last:
            near = difflib.get_close_matches(name, list(last), n=1)
            raise ValueError(
                f"`cut` must name layers of the model. Received: cut={list(names)!r}, which has no layer '{name}'. "
                f"{f'Did you mean {near[0]!r}?' if near else f'Its first ones are {list(last)[:5]}'}"
            )
    bounds = [0, *sorted(last[name] + 1 for name in names), len(graph.nodes)]
    counts = _new_weights(graph)
    for number, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
        if not sum(counts[start:stop]):
            raise ValueError(
                f"each stage must have weights to train. Received: cut={list(names)!r}, which leaves stage {number} of "
                f"{len(bounds) - 1} without any. Cut at other layers"
            )
    return bounds


def _by_size(graph: keras_internals.Graph, stages: int, times: Sequence[float] | None) -> list[int]:
    counts = _new_weights(graph)
    costs = None if times is None else [round(seconds * 1e9) for seconds in times]
    bounds = divide(counts, bytes_across(graph), stages, costs)
    if bounds is None:
        raise ValueError(
            "a pipeline must have at most as many stages as its model has layers with weights of their own to train. "
            f"Received: stages={stages}, and a model with {sum(map(bool, counts))} such layers. Use so many, or fewer"
        )
    return bounds


def _check_moving(cut: Cut) -> None:
    """Raise `ValueError` if a layer whose calls change its state is on two stages."""
    seen: dict[int, int] = {}
    for stage in cut.stages:
        for layer in stage.layers:
            moves = [
                variable
                for variable in getattr(layer, "non_trainable_variables", ())
                if variable.name != "seed_generator_state"
            ]
            if moves and layer.trainable and seen.setdefault(id(layer), stage.number) != stage.number:
                raise ValueError(
                    f"a layer that keeps something between calls must be on one stage. Received: '{layer.name}' on "
                    f"stages {seen[id(layer)]} and {stage.number}. Cut elsewhere, or give each its own"
                )
