"""Measures the cost of packing gradients on one core of this machine, in a fraction of a second per codec.

A separate process measures it, whose numeric library has one thread, as in a rank.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from easyscale import communicator, compression, run_module
from easyscale.compression import Compression, Packing, PowerSGD, Span, StepOfForm
from easyscale.exchange.exchange import Exchange

__all__ = ["FormCost", "cost_of", "costs_of"]

_SEGMENT, _SEGMENTS = 1 << 16, 64  # elements of a message, as in a ring; messages, more than fit in a cache
_SIDE = 1024  # rows and columns of a kernel
_REPEATS = 5
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class FormCost(NamedTuple):
    """The cost of a codec.

    Attributes:
        share: Float. Its bytes, as a fraction of those of float32.
        pack: Float. Seconds of packing per byte of float32.
        unpack: Float. The same for unpacking.
        sums: Int. Number of allreduces of a vector in a step.
        by_message: Bool. Whether messages are packed, rather than whole vectors.
    """

    share: float
    pack: float
    unpack: float
    sums: int = 1
    by_message: bool = True

    def packing(self, sent: float, nbytes: int) -> float:
        """Return the seconds of packing in an exchange of `nbytes`, in which a rank sends `sent` in both phases."""
        return self.pack * sent / 2 + self.unpack * sent if self.by_message else self.pack * nbytes


def costs_of(names: Sequence[str]) -> dict[str, FormCost]:
    """Measure the cost of the codecs of these names on this machine."""
    if not names:
        return {}
    command = run_module.command(__name__, *names)
    done = subprocess.run(command, env={**os.environ, **_ONE_THREAD}, stdout=subprocess.PIPE, text=True, check=True)
    return {name: FormCost(*values) for name, values in json.loads(done.stdout).items()}


def cost_of(form: Compression) -> FormCost:
    """Measure the cost of a codec in this process. Whole vectors are measured as kernels of 1,024 by 1,024."""
    if isinstance(form, Packing):
        numbers = np.random.default_rng(0).normal(size=(_SEGMENTS, _SEGMENT)).astype("float32")
        messages = [form.pack(segment) for segment in numbers]
        pack = _least(lambda: [form.pack(segment) for segment in numbers]) / numbers.nbytes
        unpack = _least(lambda: [*map(form.unpack, messages, numbers)]) / numbers.nbytes
        return FormCost(messages[0].size / numbers[0].nbytes, pack, unpack)
    vector = np.random.default_rng(0).normal(size=_SIDE * _SIDE).astype("float32")
    sent: list[int] = []
    way, left_out = _Counted(sent).connect(communicator.get("local")), np.zeros_like(vector)
    step = StepOfForm(0, [Span(0, 0, vector.size, (_SIDE, _SIDE))], {})
    taken = _least(lambda: form.sum(way, vector, step, left_out))
    sums = 2 if isinstance(form, PowerSGD) else 1
    return FormCost(sum(sent[-sums:]) / vector.nbytes, taken / vector.nbytes, 0.0, sums, by_message=False)


def _least(act: Callable[[], Any]) -> float:
    """Return the shortest of several times of an action: other load on the machine can only lengthen it."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)


class _Counted(Exchange):
    """A one-rank exchange that records how many bytes would be summed."""

    def __init__(self, sent: list[int]):
        self._sent = sent

    def allreduce(self, buffer: np.ndarray) -> None:
        self._sent.append(buffer.nbytes)

    def _reduce(self, buffer: np.ndarray) -> None: ...

    def _gather(self, buffer: np.ndarray) -> None: ...


if __name__ == "__main__":
    print(json.dumps({name: cost_of(compression.available()[name]()) for name in sys.argv[1:]}))
