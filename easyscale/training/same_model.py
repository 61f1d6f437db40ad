"""What ranks tell each other of their models before they train: weights of one shape do not make one model."""

from collections.abc import Sequence
from typing import NamedTuple

import keras

from easyscale.errors import DesyncError
from easyscale.keras_internals import layers_of

__all__ = ["LayerFacts", "check_same_layers", "layer_facts"]


class LayerFacts(NamedTuple):
    """What the layers of all ranks' models have in common, beside their weights.

    Attributes:
        kind: String. The class of the layer.
        name: String. Its name, which is not compared: Keras numbers layers, and a rank may have made others before.
        dtype: String. The type that it computes in.
        trainable: Bool. Whether it is trained.
    """

    kind: str
    name: str
    dtype: str
    trainable: bool

    @property
    def compared(self) -> dict[str, str]:
        """What has to be the same, as text, by what it is called."""
        return {"class": self.kind, "compute_dtype": self.dtype, "trainable": str(self.trainable)}


def layer_facts(model: keras.Model) -> list[LayerFacts]:
    """Return what is told of each layer of a model."""
    return [
        LayerFacts(type(layer).__name__, layer.name, layer.compute_dtype, layer.trainable) for layer in layers_of(model)
    ]


def check_same_layers(all_ranks: Sequence[Sequence[LayerFacts]]) -> None:
    """Raise `DesyncError` if a rank's layers differ from the chief's.

    A rank with more or fewer layers has other weights as well, or builds them with its first batch: that is seen then.

    Args:
        all_ranks: For each rank what `layer_facts` has returned, also as plain lists.
    """
    chief = [LayerFacts(*layer) for layer in all_ranks[0]]
    for rank, layers in enumerate(all_ranks):
        if layers == all_ranks[0]:  # as a rule, and there may be many
            continue
        for own, other in zip(chief, (LayerFacts(*layer) for layer in layers), strict=False):
            for what, value in own.compared.items():
                if (differs := other.compared[what]) != value:
                    raise DesyncError(
                        f"all ranks must build the same model. Received: layer '{own.name}' with {what}={value} "
                        f"on rank 0, '{other.name}' with {what}={differs} on rank {rank}. Run one script on all ranks"
                    )
