"""Rank side of `easyscale bench exchange`: measures. The chief writes JSON lines to stdout.

    {"machine": ...}                 once
    {"measuring": ..., "bytes": ...} before each exchange and size
    {"row": ...}                     after each size, for each exchange
    {"wrong": ...}                   an incorrect sum; nothing follows

Every rank runs `main`.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np

from easyscale import communicator as communicators
from easyscale import exchange as exchanges
from easyscale.bench.machine import describe_machine
from easyscale.bench.telling import teller
from easyscale.communicator import Communicator
from easyscale.exchange import Exchange

__all__ = ["expected", "measure"]

BUDGET = 1.0  # seconds of measuring for each size and exchange
FEWEST, MOST = 7, 1000  # repetitions


def main() -> None:
    wanted = json.loads(sys.argv[1])
    communicator = communicators.get()
    say = teller(communicator)
    say({"machine": describe_machine(communicator)})
    if wanted["exchanges"] is None:
        connected = {exchange.name: exchange for exchange in exchanges.candidates(communicator)}
    else:
        connected = {name: exchanges.get(name, communicator) for name in wanted["exchanges"]}
    for nbytes in wanted["sizes"]:
        for row in measure(communicator, connected, nbytes, wanted["dtype"], wanted["repeats"], wanted["warmup"], say):
            say({"row": row})


def measure(
    communicator: Communicator,
    connected: Mapping[str, Exchange],
    nbytes: int,
    dtype: str,
    repeats: int | None,
    warmup: int,
    say: Callable[[dict], None],
) -> list[dict]:
    """Measure `allreduce` of one size with every exchange, interleaved: each repetition runs all of them in turn.

    Args:
        communicator: The `Communicator`.
        connected: Dict from names to exchanges.
        nbytes: Int. Size of the vector.
        dtype: String. The dtype of its elements.
        repeats: Int. Number of repetitions, or `None` for as many as fit the time budget.
        warmup: Int. Number of untimed repetitions before them.
        say: Callable. Takes a message for the launcher.

    Returns:
        List of a dict for each exchange; `times` has the slowest rank's seconds for each repetition.
    """
    length = max(1, nbytes // np.dtype(_dtype(dtype)).itemsize)
    source = _values(length, _dtype(dtype), communicator.rank)
    right = expected(length, _dtype(dtype), communicator.workers)
    buffers = {name: exchange.allocate(length, _dtype(dtype)) for name, exchange in connected.items()}

    def run(name: str) -> float:
        np.copyto(buffers[name], source)
        communicator.barrier()
        start = time.perf_counter()
        connected[name].allreduce(buffers[name])
        return time.perf_counter() - start

    taken = {}
    for name in connected:
        say({"measuring": name, "bytes": nbytes})
        taken[name] = min(run(name) for _ in range(max(1, warmup)))
        wrong = communicator.all_gather_object(bool((buffers[name] != right).any()))
        if any(wrong):
            ranks = [rank for rank, is_so in enumerate(wrong) if is_so]
            say({"wrong": {"exchange": name, "bytes": nbytes, "ranks": ranks}})
            sys.exit(0)
    slowest = max(communicator.all_gather_object(sum(taken.values())))
    count = repeats or int(np.clip(BUDGET * len(connected) / slowest, FEWEST, MOST))
    times = np.array([[run(name) for name in connected] for _ in range(count)])
    times = communicator.all_gather_rows(times).max(axis=0)
    return [
        {"bytes": length * source.itemsize, "exchange": name, "dtype": dtype, "times": times[:, index].tolist()}
        for index, name in enumerate(connected)
    ]


def expected(length: int, dtype: np.dtype, size: int) -> np.ndarray:
    """Return the sum of the initial vectors of `size` ranks, in closed form."""
    return (np.arange(length) % 13 * size + size * (size - 1) // 2).astype("float32").astype(dtype)


def _dtype(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _values(length: int, dtype: np.dtype, rank: int) -> np.ndarray:
    return (np.arange(length) % 13 + rank).astype("float32").astype(dtype)


if __name__ == "__main__":
    main()
