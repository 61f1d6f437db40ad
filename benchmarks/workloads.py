"""What is trained, the same in every stack. Only Python's standard library."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["CLASSES", "SETTLING", "SMALL", "SMALL_BATCH", "SMALL_STEPS", "WORKLOADS", "Workload", "steps_of"]

CLASSES = 10
SMALL, SMALL_BATCH = (64, 64, 10), 32  # the widths of a net whose step takes a millisecond
SMALL_STEPS = 500  # in an epoch
SETTLING = 2  # steps at the begin of each turn that do not count


class Workload(NamedTuple):
    """A model and how it is trained.

    Attributes:
        title: String.
        model: String. `"mlp"`: 784-4096-4096-1024-10, which is 24.2 million weights; or `"resnet50"`.
        optimizer: String. `"adam"`, or `"momentum"`: SGD with a momentum of 0.9.
        batch: Int. Samples of each process in a step.
        steps: Int. Steps in a turn that count.
    """

    title: str
    model: str
    optimizer: str
    batch: int
    steps: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, as TensorFlow has it."""
        return (784,) if self.model == "mlp" else (64, 64, 3)

    @property
    def samples(self) -> int:
        """Of a turn."""
        return self.batch * (SETTLING + self.steps)


WORKLOADS = {
    "mlp-adam": Workload("MLP of 24.2 M weights, batch 128, Adam", "mlp", "adam", 128, 6),
    "mlp-momentum": Workload("the same MLP, SGD with momentum", "mlp", "momentum", 128, 6),
    "resnet50": Workload("ResNet50, 64 by 64, batch 16, SGD with momentum", "resnet50", "momentum", 16, 4),
}


def steps_of(ends: Sequence[float]) -> list[float]:
    """Return the seconds of each step that counts, from when steps ended."""
    ends = ends[SETTLING - 1 :]
    return [later - earlier for earlier, later in zip(ends[:-1], ends[1:], strict=True)]
