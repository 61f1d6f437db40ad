"""The random numbers of a process: Python's, NumPy's and the backend's own generators, as plain lists."""

import hashlib
import random

import numpy as np

from easyscale.backend.base import Backend

__all__ = ["get_random_state", "mix", "set_random_state"]


def get_random_state(backend: Backend) -> dict:
    """Return the state of the generators that a script uses without making them. JSON takes it."""
    version, numbers, gauss = random.getstate()
    of_numpy = np.random.get_state(legacy=False)
    key, position = of_numpy["state"]["key"], of_numpy["state"]["pos"]
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [of_numpy["bit_generator"], key.tolist(), position, of_numpy["has_gauss"], of_numpy["gauss"]],
        backend.name: backend.random_state(),
    }


def set_random_state(backend: Backend, state: dict) -> None:
    """Go on with random numbers where `get_random_state` was called; the backend's own only if it was this one."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    if backend.name in state:
        backend.set_random_state(state[backend.name])


def mix(seed: int, rank: int) -> int:
    """Return the seed of a rank that follows from another one's."""
    digest = hashlib.blake2b(f"{seed} {rank}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1  # 31 bits: it may be an int32
