"""The random numbers of a process: Python's, NumPy's and the backend's own generators, as plain lists."""

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from easyscale.backend.base import Backend

__all__ = ["get_numpy_state", "get_random_state", "mix", "set_numpy_state", "set_random_state"]


def get_random_state(backend: Backend) -> dict:
    """Return the state of the generators that a script uses without making them. JSON takes it."""
    version, numbers, gauss = random.getstate()
    return {
        "python": [version, list(numbers), gauss],
        "numpy": get_numpy_state(),
        backend.name: backend.random_state(),
    }


def set_random_state(backend: Backend, state: dict) -> None:
    """Go on with random numbers where `get_random_state` was called; the backend's own only if it was this one."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    set_numpy_state(state["numpy"])
    if backend.name in state:
        backend.set_random_state(state[backend.name])


def get_numpy_state() -> list:
    """Return the state of NumPy's generator. JSON takes it."""
    of_numpy = np.random.get_state(legacy=False)
    key, position = of_numpy["state"]["key"], of_numpy["state"]["pos"]
    return [of_numpy["bit_generator"], key.tolist(), position, of_numpy["has_gauss"], of_numpy["gauss"]]


def set_numpy_state(state: Sequence[Any]) -> None:
    """Go on with NumPy's random numbers where `get_numpy_state` was called."""
    name, keys, position, has_gauss, cached = state
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))


def mix(seed: int, rank: int) -> int:
    """Return the seed of a rank that follows from another one's."""
    digest = hashlib.blake2b(f"{seed} {rank}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1  # 31 bits: it may be an int32
