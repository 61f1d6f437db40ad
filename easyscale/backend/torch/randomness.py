"""The states of PyTorch's global generators, used by layers without a seed: the CPU's and a GPU's."""

from collections.abc import Sequence

import torch

from easyscale.backend.torch import on_gpus

__all__ = ["set_states", "states"]


def states() -> list[torch.Tensor]:
    """Return the state of the CPU's generator and, if Keras computes on a GPU, of the GPU's."""
    device = on_gpus.device()
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_states(states: Sequence[torch.Tensor]) -> None:
    """Restore what `states` returned, perhaps on another kind of device."""
    torch.set_rng_state(states[0])
    device = on_gpus.device()
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
