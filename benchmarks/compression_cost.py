"""What a form costs on one core: a vector packed and unpacked, beside one copy of it.

python benchmarks/compression_cost.py [--megabytes 100] [--rounds 5]
"""

import argparse
import os
import statistics
import time

import numpy as np

from easyscale import compression
from easyscale.compression import Packing

__all__ = ["measure"]

SEGMENT = 1 << 16  # elements: what a ring packs at once


def measure(megabytes: int, rounds: int) -> dict[str, float]:
    """Return the seconds, the median of some rounds in turns, of a copy and of each form that packs messages."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    vector = np.random.default_rng(0).normal(size=megabytes * 250_000).astype("float32")
    back = np.zeros_like(vector)

    def there_and_back(form):
        for start in range(0, vector.size, SEGMENT):
            form.unpack(form.pack(vector[start : start + SEGMENT]), back[start : start + SEGMENT])

    def seconds(act):
        start = time.perf_counter()
        act()
        return time.perf_counter() - start

    forms = {name: cls() for name, cls in compression.available().items() if issubclass(cls, Packing)}
    times = {name: [] for name in ["copy", *forms]}
    for _ in range(1 + rounds):  # the first does not count
        times["copy"].append(seconds(lambda: np.copyto(back, vector)))
        for name, form in forms.items():
            times[name].append(seconds(lambda form=form: there_and_back(form)))
    return {name: statistics.median(measured[1:]) for name, measured in times.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    found = measure(**vars(parser.parse_args()))
    for name, median in found.items():
        print(f"{name:8} {1e3 * median:7.1f} ms  {median / found['copy']:5.1f} copies")


if __name__ == "__main__":
    main()
