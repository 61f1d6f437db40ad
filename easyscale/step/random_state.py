"""The random number generators of a process: Python's, NumPy's and the backend's, as plain lists."""

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from easyscale.backend.base import Backend

__all__ = ["get_numpy_state", "get_random_state", "mix", "set_numpy_state", "set_random_state"]


def get_random_state(backend: Backend) -> dict:
    """Return the state of the global generators, for JSON."""
    version, numbers, gauss = random.getstate()
    return {
        "python": [version, list(numbers), gauss],
        "numpy": get_numpy_state(),
        backend.name: backend.random_state(),
    }


def set_random_state(backend: Backend, state: dict) -> None:
    """Restore a state from `get_random_state`, without the backend's generator if the backend is another."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    set_numpy_state(state["numpy"])
    if backend.name in state:
        backend.set_random_state(state[backend.name])


def get_numpy_state() -> list:
    """Return the state of NumPy's global generator, for JSON."""
    of_numpy = np.random.get_state(legacy=False)
    key, position = of_numpy["state"]["key"], of_numpy["state"]["pos"]
    return [of_numpy["bit_generator"], key.tolist(), position, of_numpy["has_gauss"], of_numpy["gauss"]]


def set_numpy_state(state: Sequence[Any]) -> None:
    """Restore a state from `get_numpy_state`."""
    name, keys, position, has_gauss, cached = state
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))


def mix(seed: int, rank: int) -> int:
    """Derive the seed of a rank from another seed."""
    digest = hashlib.blake2b(f"{seed} {rank}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1  # 31 bits, to fit an int32
