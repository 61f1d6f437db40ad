"""Learning rates for several workers, and so for larger batches."""

from easyscale import called
from easyscale.errors import is_number, unknown
from easyscale.workers import size

__all__ = ["scaled_lr"]


def scaled_lr(base_lr: float, base_batch: int, batch: int | None = None, rule: str = "linear") -> float:
    """Return the learning rate for a larger batch than the one that `base_lr` was tuned for.

        base_lr * (batch / base_batch)              "linear"
        base_lr * (batch / base_batch) ** 0.5       "sqrt"

    Args:
        base_lr: Float. The rate tuned for `base_batch`.
        base_batch: Int. Samples in a step.
        batch: Int. Samples in a step of all workers. Defaults to `None`: `base_batch` on each worker.
        rule: String. `"linear"`, for SGD (Goyal et al., 2017), or `"sqrt"`, for LAMB (You et al., 2020).
            Defaults to `"linear"`.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> easyscale.scaled_lr(0.1, base_batch=256, batch=8192)
    3.2
    >>> easyscale.scaled_lr(0.1, base_batch=256)  # one worker
    0.1
    """
    called.note("scaled_lr")
    if not is_number(base_lr, above=0):
        raise ValueError(f"`base_lr` must be a number above 0. Received: {base_lr=}")
    batch = base_batch * size() if batch is None else batch
    for name, value in (("base_batch", base_batch), ("batch", batch)):
        if not is_number(value, 1):
            raise ValueError(f"`{name}` must be 1 or more samples. Received: {name}={value!r}")
    powers = {"linear": 1.0, "sqrt": 0.5}
    if not isinstance(rule, str) or rule not in powers:
        raise ValueError(unknown("rule", rule, list(powers)))
    return base_lr * (batch / base_batch) ** powers[rule]
