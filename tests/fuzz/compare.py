"""What is promised to be equal, and whether it is: docs/equivalence.md, in code."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from fuzz.case import Case
from fuzz.dimensions.data import uneven
from fuzz.dimensions.models import unsynchronized

__all__ = ["TOLERANCE", "compare", "compare_ranks"]

# What numbers may differ by, relative to their size where that is more than 1. In float64 as in `easyscale verify`.
TOLERANCE = {"float64": 1e-8, "float32": 2e-4, "mixed_float16": 0.03, "mixed_bfloat16": 0.1}


def compare(case: Case, one: Mapping, several: Mapping) -> str:
    """Return the first difference between what is seen of one process and of several; `""` if there is none."""
    if case["workers"] != "1" and unsynchronized(case):
        return ""  # each worker normalizes by its own part: another training, on purpose
    tolerance = TOLERANCE[case["precision"]]
    ours, theirs = dict(_leaves(one)), dict(_leaves(several))
    if list(ours) != list(theirs):
        other = sorted({*ours} ^ {*theirs}, key=str)
        return f"{' / '.join(map(str, other[0]))} is there on one side only" if other else "another order of results"
    largest, where = 0.0, ""
    for path, value in ours.items():
        if _is_not_promised(case, path):
            continue
        if np.shape(value) != np.shape(theirs[path]):
            return f"{' / '.join(map(str, path))} has the shape {np.shape(value)}, and {np.shape(theirs[path])}"
        gap = _gap(value, theirs[path])
        if gap > tolerance:
            return f"{' / '.join(map(str, path))} differs by {gap:.1e} (tolerance {tolerance:.0e})"
        if gap > largest:
            largest, where = gap, path
    return ""


def compare_ranks(replies: Mapping[int, Mapping]) -> str:
    """Return the first difference between what ranks see, which have to be the same bits; `""` if there is none."""
    chief = dict(_leaves(replies[0]))
    for rank, seen in replies.items():
        for path, value in _leaves(seen):
            if path not in chief or not np.array_equal(value, chief[path], equal_nan=True):
                return f"{' / '.join(map(str, path))} is another on rank {rank} than on rank 0"
    return ""


def _leaves(value: object, path: tuple = ()) -> Iterator[tuple[tuple, object]]:
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(value[key], (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _leaves(one, (*path, number))
    else:
        yield path, value


def _is_not_promised(case: Case, path: tuple) -> bool:
    """Keras weighs the loss of one of several outputs by batches instead of samples."""
    is_uneven = uneven(case) or case["validation"] == "uneven data" or case["second"] == "more data, fit"
    return case["outputs"] != "one" and is_uneven and any(str(part).endswith(("one_loss", "two_loss")) for part in path)


def _gap(value: object, other: object) -> float:
    value, other = np.asarray(value, "float64"), np.asarray(other, "float64")
    if not value.size:
        return 0.0
    same = (value == other) | (np.isnan(value) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(value - other))
    gap = float(np.nan_to_num(gaps, nan=math.inf, posinf=math.inf).max())
    finite = np.abs(value[np.isfinite(value)])
    return gap / max(1.0, float(finite.max(initial=0.0)))
