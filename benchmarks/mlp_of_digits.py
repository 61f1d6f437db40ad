"""What is trained the same in two stacks: a net of four million weights on digits, from one start. NumPy only."""

import json
import statistics
from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_digits

__all__ = ["LOCAL_BATCH", "RATE", "answer", "batches", "digits", "start"]

LOCAL_BATCH, RANKS, RATE = 16, 2, 0.02
SETTLING = 4  # steps that do not count, PowerSGD's first ones among them


def start(width: int, seed: int) -> list[np.ndarray]:
    """Return the kernels to begin with (He et al., 2015): `(inputs, outputs)`. Biases are zero."""
    generator = np.random.default_rng(seed)
    sizes = [64, width, width, 10]
    shapes = zip(sizes[:-1], sizes[1:], strict=True)
    return [generator.normal(scale=np.sqrt(2 / n), size=(n, m)).astype("float32") for n, m in shapes]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return all images, of shape `(1797, 64)`, and labels."""
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y.astype("int32")


def batches(steps: int, seed: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a rank's batches, of shapes `(steps, LOCAL_BATCH, 64)` and `(steps, LOCAL_BATCH)`."""
    x, y = digits()
    chosen = np.random.default_rng(seed).integers(0, len(x), (steps, RANKS, LOCAL_BATCH))[:, rank]
    return x[chosen], y[chosen]


def answer(ends: Sequence[float], loss: float) -> str:
    """Return the line that says the loss on all digits, and the median seconds of a step."""
    return "found " + json.dumps({"loss": loss, "seconds": statistics.median(np.diff(ends[SETTLING:]).tolist())})
