"""The verdict of `easyscale verify`: compares the recordings of one process and of several, step by step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from easyscale.cli.verify import hints
from easyscale.cli.verify.recorded import Metric, Recorded
from easyscale.errors import EasyScaleError

__all__ = ["Verdict", "compare"]

_TOLERANCE = {"float64": 1e-8, "float32": 1e-5}


class Verdict(NamedTuple):
    """The result: whether several processes took the same steps as one, and lines with details."""

    equal: bool
    lines: list[str]


def compare(
    reference: Recorded, several: Recorded, tolerance: float | None = None, warnings: Sequence[str] = ()
) -> Verdict:
    """Compare the recording of one process with that of several.

    Args:
        reference: `Recorded`, of one rank, and not empty.
        several: `Recorded`.
        tolerance: Float. The largest difference allowed in weights. Metrics, and the sums of a script that trains
            nothing, may differ by as much, relative to their size if that is above 1. Defaults to `None`: 1e-8 if all
            weights are float64, else 1e-5.
        warnings: EasyScale's warnings on the several processes.

    Raises:
        EasyScaleError: If one process has computed numbers that are not finite.
    """
    comparison = _Comparison(reference, several, tolerance)
    found = comparison.weights() or comparison.step_ends() if reference.updates else comparison.sums()
    if found is None:
        lines = comparison.summary()
    else:
        lines = [f"first difference: {found}"]
        lines += [
            f"hint: {hint}" for hint in hints.find(reference, several, warnings, comparison.largest, comparison.at)
        ]
    if failed := reference.notes("failed") + several.notes("failed"):
        lines.append(f"not compared: what follows {failed[0]}")
    if off := reference.notes("switched_off"):
        lines.append(f"switched off for the comparison: {', '.join(off)}")
    return Verdict(found is None, lines)


class _Comparison:
    def __init__(self, reference: Recorded, several: Recorded, tolerance: float | None):
        self._reference, self._several = reference, several
        self._who = f"{several.ranks} processes"
        first = reference.weights(1).values() if reference.updates else [reference.sum(1)]
        self._dtype = "float64" if all(value.dtype == np.float64 for value in first) else "float32"
        self._tolerance = tolerance if tolerance is not None else _TOLERANCE[self._dtype]
        self._largest: dict[str, float] = {}
        self.at = 0  # the number of updates after which the runs are compared

    def weights(self) -> str | None:
        """Return the first difference in trained weights."""
        reference, several = self._reference, self._several
        for update in range(1, min(len(reference.updates), len(several.updates)) + 1):
            self.at = update
            step, local, other = reference.step(update), reference.weights(update), several.weights(update)
            if step != several.step(update) or _shapes(local) != _shapes(other):
                return f"{step}, in which {self._who} train other weights than one process"
            if unlike := several.unlike_the_chief(update):
                return f"{step}, `{unlike[1]}` on rank {unlike[0]} is not that of rank 0"
            gaps = _gaps(local, other, step)
            off = [name for name, gap in gaps.items() if self._exceeds("weights", gap)]
            if off:
                others = f", and {_count(len(off) - 1, 'other weight')}" if len(off) > 1 else ""
                return f"{step}, {self._describe(off[0], gaps[off[0]])}{others}"
        if len(reference.updates) != len(several.updates):
            return (
                f"one process takes {_count(len(reference.updates), 'step')}, {self._who} take {len(several.updates)}"
            )
        return None

    def step_ends(self) -> str | None:
        """Return the first difference in metrics, or in variables that are not trained."""
        for update in self._step_ends:
            self.at = update
            step = self._reference.step(update)
            ours, others = self._reference.metrics(update), self._several.metrics(update)
            states, other_states = self._reference.other_variables(update), self._several.other_variables(update)
            names, other_names = [metric.name for metric in ours], [metric.name for metric in others]
            if names != other_names or _shapes(states) != _shapes(other_states):
                return f"{step}, in which {self._who} have other metrics or variables than one process"
            for name, gap in _gaps(states, other_states, step).items():
                if self._exceeds("others", gap):
                    return f"{step}, {self._describe(name, gap)}, which is not trained"
            for local, other in zip(ours, others, strict=True):
                if not np.isclose(local.count, other.count):
                    counts = f"counts {local.count:g} samples on one process, {other.count:g} on {self._who}"
                    return f"{step}, whose weights are equal, but metric `{local.name}` {counts}"
                gap = _gap(local.values, other.values, f"metric `{local.name}` of {step}") / _scale(local.values)
                if self._exceeds("metrics", gap):
                    return f"{step}, whose weights are equal, but {self._tell(local, other)}"
        return None

    def sums(self) -> str | None:
        """Return the first difference in the results of an `allreduce`."""
        reference, several = self._reference, self._several
        for number in range(1, min(reference.sums, several.sums) + 1):
            local, other = reference.sum(number), several.sum(number)
            if local.shape != other.shape:
                size = _count(local.size, "element")
                return f"allreduce {number} sums {size} on one process, {other.size} on {self._who}"
            gap = _gap(local, other, f"the result of allreduce {number}") / _scale(local)
            if self._exceeds("sums", gap):
                return self._describe(f"allreduce {number}", gap)
        if reference.sums != several.sums:
            return f"one process calls allreduce {_count(reference.sums, 'time')}, {self._who} {several.sums}"
        return None

    @property
    def _step_ends(self) -> list[int]:
        return sorted({*self._reference.step_ends} & {*self._several.step_ends})

    @property
    def largest(self) -> float:
        """The largest difference in the first step that differs; infinite if the difference is not numeric."""
        largest = max(self._largest.values(), default=0.0)
        return largest if largest > self._tolerance else np.inf

    def _exceeds(self, kind: str, gap: np.ndarray) -> bool:
        largest = float(gap.max(initial=0.0))
        self._largest[kind] = max(self._largest.get(kind, 0.0), largest)
        return largest > self._tolerance

    def _describe(self, name: str, gap: np.ndarray) -> str:
        off = f" in {np.count_nonzero(gap > self._tolerance):,} of {gap.size:,} elements" if gap.size > 1 else ""
        return f"`{name}` by {gap.max():.1e}{off} (tolerance {self._tolerance:.0e})"

    def _tell(self, local: Metric, other: Metric) -> str:
        if len(local.values) == 1:
            return f"metric `{local.name}` is {local.values[0]:g} on one process, {other.values[0]:g} on {self._who}"
        return f"metric {self._describe(local.name, np.abs(local.values - other.values))}"

    def summary(self) -> list[str]:
        """Describe what was compared, and how large the tolerated differences are."""
        reference = self._reference
        if not reference.updates:
            elements = sum(reference.sum(number).size for number in range(1, reference.sums + 1))
            size = _count(elements, "element")
            return [f"{_count(reference.sums, 'allreduce')} of {size} in {self._dtype}: {self._say('sums')}"]
        optimizers = sorted(set(reference.updates))
        last = [len(reference.updates) - reference.updates[::-1].index(number) for number in optimizers]
        weights = [value for update in last for value in reference.weights(update).values()]
        steps = _count(len(reference.updates), "step")
        steps += f" of {len(optimizers)} optimizers" if len(optimizers) > 1 else ""
        steps += f" in {reference.fits} fits" if reference.fits > 1 else ""
        size = f"{_count(len(weights), 'weight')} of {_count(sum(value.size for value in weights), 'element')}"
        lines = [f"{steps}, {size} in {self._dtype}: {self._say('weights')}"]
        if "metrics" in self._largest:
            names = [metric.name for metric in reference.metrics(self._step_ends[-1])]
            lines.append(f"metric{'s' if len(names) > 1 else ''} {', '.join(names)}: {self._say('metrics')}")
        if "others" in self._largest:
            count = len(reference.other_variables(self._step_ends[-1]))
            lines.append(f"{_count(count, 'variable')} not trained: {self._say('others')}")
        return lines

    def _say(self, kind: str) -> str:
        largest = f"max difference {self._largest[kind]:.1e}" if self._largest[kind] else "no difference"
        return f"{largest} (tolerance {self._tolerance:.0e})"


def _gap(local: np.ndarray, other: np.ndarray, subject: str) -> np.ndarray:
    """Return the absolute difference of each element."""
    if not np.isfinite(local).all():
        raise EasyScaleError(f"numbers must be finite to be compared. Received: {subject} is not, on one process")
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.abs(local.astype("float64") - other), nan=np.inf, posinf=np.inf)


def _gaps(local: dict[str, np.ndarray], others: dict[str, np.ndarray], step: str) -> dict[str, np.ndarray]:
    pairs = zip(local.items(), others.values(), strict=True)
    return {name: _gap(value, other, f"`{name}` after {step}") for (name, value), other in pairs}


def _scale(values: np.ndarray) -> float:
    return max(1.0, float(np.abs(values).max(initial=0.0)))


def _shapes(values: dict[str, np.ndarray]) -> list[tuple[int, ...]]:
    return [value.shape for value in values.values()]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
