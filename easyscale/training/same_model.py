"""Facts that ranks compare about their models before they train: weights of equal shapes may be of other models."""

from collections.abc import Sequence
from typing import NamedTuple

import keras

from easyscale.errors import DesyncError
from easyscale.keras_internals import layers_of

__all__ = ["LayerFacts", "check_same_layers", "layer_facts"]


class LayerFacts(NamedTuple):
    """Facts about a layer, besides its weights, that all ranks' models have in common.

    Attributes:
        kind: String. The class of the layer.
        name: String. Its name, which is not compared: Keras numbers layers, and a rank may have created others before.
        dtype: String. The dtype of its computations.
        trainable: Bool. Whether it is trained.
    """

    kind: str
    name: str
    dtype: str
    trainable: bool

    @property
    def compared(self) -> dict[str, str]:
        """The facts that must be the same on all ranks, as strings, by name."""
        return {"class": self.kind, "compute_dtype": self.dtype, "trainable": str(self.trainable)}


def layer_facts(model: keras.Model) -> list[LayerFacts]:
    """Return the facts about each layer of a model."""
    return [
        LayerFacts(type(layer).__name__, layer.name, layer.compute_dtype, layer.trainable) for layer in layers_of(model)
    ]


def check_same_layers(all_ranks: Sequence[Sequence[LayerFacts]]) -> None:
    """Raise `DesyncError` if a rank's layers differ from the chief's.

    A different number of layers shows in the weights, at the latest when the first batch builds them.

    Args:
        all_ranks: For each rank the result of `layer_facts`, possibly as plain lists.
    """
    chief = [LayerFacts(*layer) for layer in all_ranks[0]]
    for rank, layers in enumerate(all_ranks):
        if layers == all_ranks[0]:  # the usual case, and there may be many
            continue
        for own, other in zip(chief, (LayerFacts(*layer) for layer in layers), strict=False):
            for what, value in own.compared.items():
                if (differs := other.compared[what]) != value:
                    raise DesyncError(
                        f"all ranks must build the same model. Received: layer '{own.name}' with {what}={value} "
                        f"on rank 0, '{other.name}' with {what}={differs} on rank {rank}. Run one script on all ranks"
                    )
