"""What a user says of layers that are split."""

import re
from collections.abc import Iterable, Iterator, Mapping

import keras

from easyscale.errors import unknown
from easyscale.keras_internals import layers_of
from easyscale.parallel.split.kinds import WAYS, Kind, kinds_of

__all__ = ["Split"]


class Split:
    """Divide the weights of some layers over the workers: activations travel to the slices, and results back.

            worker 0                           worker 1
            its samples                        its samples
               |                                  |
            layers, all weights                layers, all weights      gradients travel, by the exchange
               |                                  |
            columns 0 to 2047 of fc1   <--->   columns 2048 to 4095     activations travel
               |                                  |

    Each worker keeps its part of the batch. In a `fit()` it has its slice of such a layer, and optimizer state for that
    only; the slice computes for the samples of all workers. What it costs, way by way, is said in
    `easyscale.parallel.split.trip`. Before and behind `fit()` all workers have the whole weights.

    Args:
        layers: Dict. From a regular expression, which is to match the whole name of a layer, to the way in which such
            layers are split: `"columns"` or `"rows"` of their matrix. The first that matches counts.

    Raises:
        ValueError: If an argument is none of those that it can be.

    Example:

    >>> Split({"fc.*": "columns", "embedding": "rows"})
    Split({'fc.*': 'columns', 'embedding': 'rows'})
    """

    def __init__(self, layers: Mapping[str, str]):
        if not isinstance(layers, Mapping) or not layers:
            raise ValueError(
                f"`layers` must say which layers are split, and how. Received: {layers=}. Write such as "
                "Split({'fc.*': 'columns'})"
            )
        for pattern, way in layers.items():
            if way not in WAYS:
                raise ValueError(unknown("way", way, list(WAYS)))
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"a pattern must be a regular expression. Received: {pattern!r} ({error}). Write such as 'fc.*'"
                ) from None
        self.layers = dict(layers)

    def __repr__(self) -> str:
        return f"Split({self.layers})"

    def kinds(self, layers: Iterable[keras.layers.Layer], ranks: int) -> list[Kind]:
        """Return what is split of a model's layers, in their order, before anything is.

        Args:
            layers: The layers of the model, those in layers as well.
            ranks: Int. The number of ranks over which they are divided.

        Raises:
            ValueError: If a pattern matches no layer, or one that cannot be split so.
        """
        candidates = [layer for layer in layers if layer.weights and not layers_of(layer, recursive=False)]
        chosen: dict[int, tuple[keras.layers.Layer, str]] = {}
        for pattern, way in self.layers.items():
            found = [layer for layer in candidates if re.fullmatch(pattern, layer.name)]
            if not found:
                names = ", ".join(f"'{layer.name}'" for layer in candidates if kinds_of(layer))
                raise ValueError(
                    f"a pattern must match the name of a layer that can be split. Received: {pattern!r}, where the "
                    f"model has {names or 'no such layer'}. Name one of them, or some by such as 'fc.*'"
                )
            for layer in found:
                chosen.setdefault(id(layer), (layer, way))
        return [_kind(*chosen[id(layer)], ranks) for layer in candidates if id(layer) in chosen]


def _kind(layer: keras.layers.Layer, way: str, ranks: int) -> Kind:
    named, kinds = f"{type(layer).__name__} '{layer.name}'", kinds_of(layer)
    if way not in kinds:
        raise ValueError(
            f"a layer that is split by {way} must be one of those that can be. Received: {named}. "
            f"{f'Split it by {next(iter(kinds))}' if kinds else 'Leave it out of the pattern'}"
        )
    for rule, received, remedy in _refusals(layer):
        raise ValueError(f"{rule}. Received: {named} {received}. {remedy}")
    kind = kinds[way](layer)
    variable, axis = kind.slices[0]
    if variable.shape[axis] < ranks:
        raise ValueError(
            f"a layer that is split by {way} must have one for each rank, or more. Received: {named} of "
            f"{variable.shape[axis]} {way}, {ranks} ranks. Leave it out of the pattern"
        )
    return kind


def _refusals(layer: keras.layers.Layer) -> Iterator[tuple[str, str, str]]:
    """Yield rule, what came and remedy for what a layer has that slices do not know."""
    if getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False):
        yield "a layer that is split has its own weights only", "that is quantized, or has LoRA", "Leave it out"
    if not layer.trainable:
        yield "a layer that is split must be trained", "that is not trainable", "Leave it out of the pattern"
    if layer.compute_dtype != layer.variable_dtype:
        rule = "a layer that is split computes in the type of its weights"
        yield rule, f"of policy '{layer.dtype_policy.name}'", "Use the policy 'float32' for it"
    for variable in layer.trainable_variables:
        if getattr(variable, "regularizer", None) is not None:
            rule = "a layer that is split knows no loss of its weights"
            yield rule, f"with a regularizer of `{variable.name}`", "Use `weight_decay` of the optimizer"
