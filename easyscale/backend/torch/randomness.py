"""The states of PyTorch's own generators, by which layers without a seed draw: the CPU's, and that of a GPU."""

from collections.abc import Sequence

import torch

from easyscale.backend.torch import on_gpus

__all__ = ["set_states", "states"]


def states() -> list[torch.Tensor]:
    """Return the state of the CPU's generator and, where Keras computes on a GPU, that of the GPU's."""
    device = on_gpus.device()
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_states(states: Sequence[torch.Tensor]) -> None:
    """Go on where `states` was called; there may have been another kind of device."""
    torch.set_rng_state(states[0])
    device = on_gpus.device()
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
