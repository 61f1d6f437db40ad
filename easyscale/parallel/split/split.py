"""The user's choice of layers to split."""

import re
from collections.abc import Iterator, Mapping

import keras

from easyscale.errors import is_number, unknown
from easyscale.keras_internals import layers_of
from easyscale.parallel.split.cheapest import cheapest
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

    Each worker keeps its part of the batch. During a `fit()` it has its slice of such a layer, and optimizer state for
    that slice only; the slice computes for the samples of all workers. `easyscale.parallel.split.trip` states the cost
    of each way. Before and after `fit()` all workers have the whole weights.

    With `group=G`, `G` neighbouring ranks are one worker: they have the same batch, and divide the layers among
    themselves, as in Megatron-LM (Shoeybi et al., 2019). Rows need not travel then, and weights are exchanged between
    the ranks of different workers that hold the same slices. Create `Distribute` before sharding the data.

            rank 0                             rank 1
            the batch of worker 0              the same batch
               |                                  |
            columns 0 to 2047 of fc1   <--->   columns 2048 to 4095     activations: results forward, sums backward
               |                                  |
               |  gradients of both,              |
               |  by the exchange                 |
            rank 2                             rank 3
            the batch of worker 1              the same batch

    Args:
        layers: Dict. Maps a regular expression, which must match a layer's whole name, to the way in which such layers
            are split: `"columns"` or `"rows"` of their matrix, `"heads"` of a `MultiHeadAttention`, or `"vocabulary"`:
            the columns of a last `Dense`, whose cross entropy is computed without the whole logits. The first match
            counts. Or `"auto"`: splits each layer that then sends fewer bytes in a step of this batch, by columns, rows
            or heads, whichever sends least.
        group: Int, or `"all"`. Number of neighbouring ranks that form one worker; `"all"` for all ranks. Defaults to
            `None`: each rank is a worker.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> Split({"fc.*": "columns", "embedding": "rows"})
    Split({'fc.*': 'columns', 'embedding': 'rows'})
    >>> Split({"fc1": "columns", "fc2": "rows"}, group=2)
    Split({'fc1': 'columns', 'fc2': 'rows'}, group=2)
    """

    def __init__(self, layers: Mapping[str, str] | str, group: int | str | None = None):
        self.is_auto = isinstance(layers, str) and layers == "auto"
        self.layers: dict[str, str] = {}
        is_count = is_number(group, 2, whole=True) and not isinstance(group, bool)
        if group not in (None, "all") and not is_count:
            raise ValueError(f"`group` must be an integer of 2 or more, 'all' or `None`. Received: {group=}")
        self.group = int(group) if is_count and group is not None else group
        if self.is_auto:
            if group is not None:
                raise ValueError(
                    "`Split('auto')` counts what is sent across workers. Received: "
                    f"{group=}. Name the layers, as in Split({{'fc.*': 'columns'}}, {group=})"
                )
            return
        if not isinstance(layers, Mapping) or not layers:
            raise ValueError(
                f"`layers` must say which layers are split, and how. Received: {layers=}. Write such as "
                "Split({'fc.*': 'columns'}), or Split('auto')"
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
        return (
            "Split('auto')" if self.is_auto else f"Split({self.layers}{f', group={self.group!r}' * bool(self.group)})"
        )

    def ranks_of_worker(self, ranks: int) -> int:
        """Return the number of ranks per worker, given the total number.

        Raises:
            ValueError: If the ranks do not form whole groups.
        """
        if self.group is None or ranks == 1:
            return 1
        count = ranks if isinstance(self.group, str) else self.group
        if ranks % count:
            below = ranks // count * count
            near = " or ".join(str(number) for number in (below, below + count) if number)
            raise ValueError(
                f"the number of ranks must be a multiple of those in a group. Received: {ranks} ranks, group={count}. "
                f"Start {near}"
            )
        return count

    def kinds(self, model: keras.Model, ranks: int, samples: int | None) -> list[Kind]:
        """Return the `Kind` of each layer of a model to be split, in order, before any is.

        Args:
            model: The model.
            ranks: Int. The number of ranks that divide the layers: workers, or the ranks of a group.
            samples: Int. The samples in a worker's batch; `None` if unknown.

        Raises:
            ValueError: If a pattern matches no layer, or one that cannot be split this way; or if bytes cannot be
                counted.
        """
        if self.is_auto:
            return _cheaper(model, ranks, samples)
        layers = layers_of(model)
        chosen: dict[int, tuple[keras.layers.Layer, str]] = {}
        for pattern, way in self.layers.items():
            named = [layer for layer in layers if layer.weights and re.fullmatch(pattern, layer.name)]
            found = _meant(named, way) or named  # if none is meant, report an error for those named
            if not found:
                names = ", ".join(f"'{layer.name}'" for layer in layers if way in kinds_of(layer))
                raise ValueError(
                    f"a pattern must match the name of a layer that can be split. Received: {pattern!r}, where the "
                    f"model has {names or 'no such layer'}. Name one of them, or some by such as 'fc.*'"
                )
            for layer in found:
                chosen.setdefault(id(layer), (layer, way))
        _check_once(chosen)
        _check_norms(layers, chosen)
        return [_kind(*chosen[id(layer)], ranks) for layer in layers if id(layer) in chosen]


def _parts(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    return [part for part in layers_of(layer) if part is not layer]


def _meant(layers: list[keras.layers.Layer], way: str) -> list[keras.layers.Layer]:
    """Return the named layers to which a way applies: not those that contain layers, nor those inside of attention.

    Attention itself is included if it is split by heads.
    """
    found = [layer for layer in layers if way in kinds_of(layer) or not _parts(layer)]
    inside = {id(part) for layer in found for part in _parts(layer)}
    return [layer for layer in found if id(layer) not in inside]


def _check_once(chosen: Mapping[int, tuple[keras.layers.Layer, str]]) -> None:
    for layer, way in chosen.values():
        for part in _parts(layer):
            if id(part) in chosen:
                raise ValueError(
                    f"a layer must be split once. Received: {type(layer).__name__} '{layer.name}' by {way}, and "
                    f"'{part.name}' in it by {chosen[id(part)][1]}. Leave one of them out"
                )


def _check_norms(layers: list[keras.layers.Layer], chosen: Mapping[int, tuple[keras.layers.Layer, str]]) -> None:
    for layer in layers:
        if isinstance(layer, keras.layers.SpectralNormalization) and id(layer.layer) in chosen:
            raise ValueError(
                "a layer that is split has no norm of its whole weights. Received: "
                f"{type(layer.layer).__name__} '{layer.layer.name}' in SpectralNormalization. Leave it out"
            )


def _cheaper(model: keras.Model, ranks: int, samples: int | None) -> list[Kind]:
    """Return the layers that send less if they are split, each in its cheapest way."""
    if samples is None:
        raise ValueError(
            "`Split('auto')` needs to know the samples in a batch. Received: data that do not tell. Give `fit()` "
            "arrays, or a batched `tf.data.Dataset`, or name the layers"
        )
    offers = cheapest(model, samples, ranks)
    return [offer.kind for offer in offers if offer.sent < offer.whole and not any(_refusals(offer.kind, ranks))]


def _kind(layer: keras.layers.Layer, way: str, ranks: int) -> Kind:
    named, kinds = f"{type(layer).__name__} '{layer.name}'", kinds_of(layer)
    if way not in kinds:
        raise ValueError(
            f"a layer that is split by {way} must be one of those that can be. Received: {named}. "
            f"{f'Split it by {next(iter(kinds))}' if kinds else 'Leave it out of the pattern'}"
        )
    kind = kinds[way](layer)
    for rule, received, remedy in _refusals(kind, ranks):
        raise ValueError(f"{rule}. Received: {named} {received}. {remedy}")
    return kind


def _refusals(kind: Kind, ranks: int) -> Iterator[tuple[str, str, str]]:
    """Yield rule, received value and remedy for each property of a layer that slices do not support."""
    layer = kind.layer
    if kind.length < ranks:
        rule = f"a layer that is split by {kind.way} must have one for each rank, or more"
        yield rule, f"of {kind.length} {kind.indices}, {ranks} ranks", "Leave it out of the pattern"
    parts = layers_of(layer)
    if any(getattr(part, "quantization_mode", None) or getattr(part, "lora_enabled", False) for part in parts):
        yield "a layer that is split has its own weights only", "that is quantized, or has LoRA", "Leave it out"
    if not all(part.trainable for part in parts):
        yield "a layer that is split must be trained", "that is not trainable", "Leave it out of the pattern"
    if any(part.compute_dtype != part.variable_dtype for part in parts):
        rule = "a layer that is split computes in the type of its weights"
        yield rule, f"of policy '{layer.dtype_policy.name}'", "Use the policy 'float32' for it"
    for variable in layer.trainable_variables:
        if getattr(variable, "regularizer", None) is not None:
            rule = "a layer that is split knows no loss of its weights"
            yield rule, f"with a regularizer of `{variable.name}`", "Use `weight_decay` of the optimizer"
    yield from kind.refusals()
