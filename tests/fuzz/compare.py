"""What is promised to be equal, and whether it is: docs/equivalence.md, in code."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fuzz.case import Case
from fuzz.dimensions.distribution import NOT_WAITING, ROUNDS, is_another, is_packed, waits
from fuzz.dimensions.models import unsynchronized
from fuzz.dimensions.parallel import is_pipelined, pipelines, replicas
from fuzz.dimensions.resume import is_cut_off

__all__ = ["TOLERANCE", "Difference", "compare", "compare_ranks", "compare_resumed", "rounded_to"]

# What numbers may differ by, relative to their size where that is more than 1. In float64 as in `easyscale verify`.
TOLERANCE = {"float64": 1e-8, "float32": 2e-4, "mixed_float16": 0.03, "mixed_bfloat16": 0.1}


class Difference(NamedTuple):
    """Where two results differ first, and by how much they differ at most."""

    text: str
    gap: float = math.inf


def compare(case: Case, reference: Mapping, several: Mapping, tolerance: float | None = None) -> Difference | None:
    """Return the difference between what is seen of one process and of several, or `None`.

    `tolerance` is that of the case's precision if it is `None`.
    """
    if case["workers"] != "1" and (_normalizes_parts(case) or not waits(case)):
        return None  # another training, on purpose
    tolerance = TOLERANCE[rounded_to(case)] if tolerance is None else tolerance
    ours, others = dict(_leaves(reference)), dict(_leaves(several))
    if case["exchange"] in NOT_WAITING:  # one process with a server of its own, which counts
        others = {path: value for path, value in others.items() if not {*path} & {"staleness", "staleness_max"}}
    if pipelines(case) > 1 and case["validation"] == "uneven data":
        ours, others = (
            {path: value for path, value in leaves.items() if not _counts_by_batches(path)} for leaves in (ours, others)
        )
    if list(ours) != list(others):
        other = sorted({*ours} ^ {*others}, key=str)
        return Difference(f"{_name(other[0])} is there on one side only" if other else "results have another order")
    gaps = {}
    for path, value in ours.items():
        if np.shape(value) != np.shape(others[path]):
            return Difference(f"{_name(path)} has the shape {np.shape(value)}, and {np.shape(others[path])}")
        gaps[path] = _gap(value, others[path])
    if is_another(case):
        return None  # another training, on purpose, of the same things
    off = [path for path, gap in gaps.items() if gap > tolerance]
    if not off:
        return None
    return Difference(f"{_name(off[0])} differs by {gaps[off[0]]:.1e} (tolerance {tolerance:.0e})", max(gaps.values()))


def rounded_to(case: Case) -> str:
    """Return the precision whose rounding results have: that of the form in which gradients travel, if it rounds."""
    return ROUNDS[case["compression"]] if is_packed(case) and case["compression"] in ROUNDS else case["precision"]


def _normalizes_parts(case: Case) -> bool:
    """Whether batches are normalized by parts: those of workers, or micro-batches."""
    return unsynchronized(case) and (replicas(case) > 1 or (is_pipelined(case) and case["microbatches"] != "1"))


def _counts_by_batches(path: tuple) -> bool:
    """Whether it is the loss of one of several outputs in a validation: docs/limits.md."""
    evaluated = any(str(name).endswith("evaluate") for name in path)
    return any(str(name).endswith(("one_loss", "two_loss")) and (evaluated or name[:4] == "val_") for name in path)


def compare_ranks(case: Case, results: Mapping[int, Mapping]) -> str:
    """Return the first difference between what ranks see, which have to be the same bits; `""` if there is none."""
    if not waits(case):
        return ""
    chief, *others = (
        {path: value for path, value in _leaves(seen) if "files" not in path} for seen in results.values()
    )
    for rank, leaves in zip(list(results)[1:], others, strict=True):
        if list(leaves) != list(chief):
            return f"rank {rank} has other results than rank 0"
        for path, value in leaves.items():
            if not np.array_equal(value, chief[path], equal_nan=True):
                return f"{_name(path)} is another on rank {rank} than on rank 0"
    return ""


def compare_resumed(case: Case, seen: Mapping) -> str:
    """Return the first difference between training in one go and from a checkpoint, which are to be the same bits.

    Gradients that are accumulated, and metrics of several devices, are only to rounding: docs/checkpoints.md. So is all
    where "auto" may have chosen another exchange.
    """
    chooses = case["exchange"] == "auto" and case["workers"] not in ("1", "2")
    if not (is_cut_off(case) and waits(case)) or chooses or case["gradient_accumulation_steps"] != "none":
        return ""
    resumed = dict(_leaves(seen["resumed"]))
    for path, value in _leaves(seen["uninterrupted"]):
        if case["replication"] == "in_graph" and "history" in path:
            continue
        if path not in resumed:
            return f"{_name(path)} is there only in one go"
        if not np.array_equal(value, resumed[path], equal_nan=True):
            return f"{_name(path)} has other bits behind a checkpoint"
    return ""


def _name(path: tuple) -> str:
    return " / ".join(map(str, path))


def _leaves(value: object, path: tuple = ()) -> Iterator[tuple[tuple, object]]:
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(value[key], (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _leaves(item, (*path, number))
    else:
        yield path, value


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
