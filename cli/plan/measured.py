"""Measurements as input for plans: `bench exchange` provides times of exchanges, `bench fit` times of steps.

For a measured number of ranks, times are interpolated linearly between the measured sizes: the cost of a byte changes
where vectors leave a cache, and where a library switches protocols. For another number of ranks `P`, the times of the
nearest `Q` of the same kind (one core per rank, or shared cores) are scaled by their critical paths:

    time(P, S) = alpha * steps(P) / steps(Q) + (time(Q, S) - alpha) * bytes(P) / bytes(Q)

`alpha` is the intercept, at zero bytes, of the line through the two smallest sizes.
"""

import json
import math
import statistics
from collections.abc import Sequence

import numpy as np

from easyscale.cli.bench.fit_report import ALONE
from easyscale.errors import EasyScaleError
from easyscale.exchange.exchange import Exchange

__all__ = ["Node", "interpolate", "left_out", "read", "step_seconds", "work"]

_MUST = "--measured must be a file that `easyscale bench exchange --json` or `easyscale bench fit --json` has written"


def read(path: str) -> dict:
    """Read the JSON file of a benchmark.

    Raises:
        EasyScaleError: If it cannot be read, or was not written by `bench exchange` or `bench fit`.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not all(isinstance(row["exchange"], str | None) for row in found["rows"]):
            raise TypeError
        numbers = [row["median"] for row in found["rows"] if row["exchange"] is not None]
        if found["benchmark"] == "exchange":
            machine = found["machine"]
            numbers += [row["bytes"] for row in found["rows"]] + [machine["cores"], machine["ranks"] - 1]
            numbers += [1 + machine.setdefault("servers", 0), 1 + len(machine["cpu"])]
        elif found["benchmark"] == "fit":
            numbers += [time for row in found["rows"] for time in [row["batch"], *row["times"]]]
            found["wanted"]["model"]
        else:
            raise ValueError(f"a benchmark '{found['benchmark']}'")
        if not all(0 < number < math.inf for number in numbers):
            raise ValueError("with numbers that are not above 0")
    except OSError as error:
        raise EasyScaleError(f"{_MUST}. Received: {path}, which cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise EasyScaleError(f"{_MUST}. Received: {path}, which is no JSON (line {error.lineno})") from None
    except UnicodeDecodeError:
        raise EasyScaleError(f"{_MUST}. Received: {path}, which is no text") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error) if type(error) is ValueError else "which has another form"
        raise EasyScaleError(f"{_MUST}. Received: {path}, {reason}") from None
    if not found["rows"]:
        raise EasyScaleError(f"{_MUST}. Received: {path}, which has no rows")
    return found


class Node:
    """A machine on which exchanges were measured.

    Args:
        exchanges: Dict from names to exchanges.
        rows: Dicts with `exchange`, `ranks`, `cores`, `bytes` and `median`. There may be none.

    Attributes:
        most: Int. Largest number of ranks to plan from measurements: that of measured ranks or cores. `0` without any.
    """

    def __init__(self, exchanges: dict[str, Exchange], rows: Sequence[dict]):
        self._exchanges = exchanges
        self.most = max((max(row["ranks"], row["cores"]) for row in rows), default=0)
        self._cores = rows[0]["cores"] if rows else 0
        self._times: dict[str, dict[int, dict[int, float]]] = {}
        for row in rows:
            self._times.setdefault(row["exchange"], {}).setdefault(row["ranks"], {})[row["bytes"]] = row["median"]

    def knows(self, ranks: int) -> bool:
        """Return whether this number of ranks was measured, or another of the same kind."""
        return any(self._nearest(name, ranks) for name in self._times)

    def seconds(self, name: str, ranks: int, nbytes: int) -> float | None:
        """Return the seconds of an allreduce, or `None` if they do not follow from the measurements."""
        nearest = self._nearest(name, ranks)
        if nearest is None:
            return None
        times = self._times[name][nearest]
        taken = interpolate(times, nbytes)
        if nearest == ranks:
            return taken
        alpha = min(interpolate(times, 0), taken)
        exchange = self._exchanges[name]
        steps, volume = work(exchange, ranks, nbytes, self._cores)
        steps_there, volume_there = work(exchange, nearest, nbytes, self._cores)
        return alpha * steps / steps_there + (taken - alpha) * volume / volume_there

    def _nearest(self, name: str, ranks: int) -> int | None:
        """Return the nearest measured number of ranks of the same kind: one core per rank, or shared cores."""
        if ranks > self.most:
            return None
        alike = [size for size in self._times.get(name, ()) if (size > self._cores) == (ranks > self._cores)]
        return min(alike, key=lambda size: abs(size - ranks), default=None)


def interpolate(times: dict[int, float], nbytes: int) -> float:
    """Interpolate the time linearly between the two nearest sizes; extrapolate from the two at the edge.

    Example:

    >>> interpolate({1000: 1.0, 2000: 2.0, 4000: 6.0}, 3000)
    4.0
    """
    sizes = sorted(times)
    if len(sizes) == 1:
        return times[sizes[0]] * max(1.0, nbytes / sizes[0])
    right = min(max(int(np.searchsorted(sizes, nbytes)), 1), len(sizes) - 1)
    (start, end), (low, high) = sizes[right - 1 : right + 1], (times[size] for size in sizes[right - 1 : right + 1])
    found = low + (high - low) * (nbytes - start) / (end - start)
    return min(max(found, 0.0), low) if nbytes < start else max(found, high) if nbytes > end else found


def left_out(rows: Sequence[dict]) -> list[dict]:
    """Return rows with `predicted`: the time interpolated from the other sizes of the same exchange and ranks.

    The smallest and the largest size have no neighbour on one side, and are left out.
    """
    checked = []
    for row in rows:
        others = {
            other["bytes"]: other["median"]
            for other in rows
            if (other["exchange"], other["ranks"]) == (row["exchange"], row["ranks"]) and other["bytes"] != row["bytes"]
        }
        if others and min(others) < row["bytes"] < max(others):
            checked.append({**row, "predicted": interpolate(others, row["bytes"])})
    return checked


def work(exchange: Exchange, ranks: int, nbytes: int, cores: int) -> tuple[float, float]:
    """Return the steps and bytes on the critical path of an allreduce on one node, plus one step for the start.

    Ranks that share cores take turns: in a short exchange as many as share the fullest core, in a long one, which the
    kernel balances, as many as share a core on average. The mean of both is used. An exchange without a critical path
    is taken for Rabenseifner's algorithm, with which MPI libraries sum long vectors: ranks beyond a power of two first
    pass theirs to another rank, and receive the sum at the end.
    """
    path = exchange.critical_path(ranks, nbytes, local_size=ranks)
    if path is not None:
        turns = _turns(ranks, cores)
        return turns * (path.steps + 1), turns * (path.bytes or path.memory)
    halving = 1 << (ranks.bit_length() - 1)
    folds, turns = 2 * (ranks > halving), _turns(halving, cores)
    steps = 2 * (halving.bit_length() - 1)
    return turns * (steps + 1) + folds, turns * 2 * nbytes * (halving - 1) / halving + folds * nbytes


def step_seconds(found: dict, model: str, batch: int) -> float:
    """Return the seconds of a step of one process of stock Keras.

    Raises:
        EasyScaleError: If it has not been measured.
    """
    times = [
        time for row in found["rows"] if row["exchange"] == ALONE and row["batch"] == batch for time in row["times"]
    ]
    if found["wanted"]["model"] != model or not times:
        batches = sorted({row["batch"] for row in found["rows"]})
        raise EasyScaleError(
            f"--measured must have steps of the planned model and batch. Received: {found['wanted']['model']} with "
            f"--batch-size {batches}, and a plan of {model} with --batch-size {batch}"
        )
    return statistics.median(times)


def _turns(ranks: int, cores: int) -> float:
    return max(1.0, (ranks / cores + -(-ranks // cores)) / 2)
