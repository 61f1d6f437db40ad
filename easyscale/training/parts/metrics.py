"""Metrics of all workers together: their states are merged, not their results."""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from easyscale.communicator import Communicator
from easyscale.errors import EasyScaleWarning
from easyscale.training.stateful import State

__all__ = ["MetricStates", "average", "leaves", "merge_logs", "restorer"]


def merge_logs(
    model: keras.Model, communicator: Communicator, logs: Mapping[str, Any], may_be_whole: bool = False
) -> dict:
    """Make every worker's metrics cover the data of all workers; return their results.

    Args:
        model: The model that has the metrics.
        communicator: The `Communicator`.
        logs: The logs of this worker's steps: custom numbers besides metrics, or none.
        may_be_whole: Bool. Whether each worker may have had all data: it has if all have the same states. Defaults to
            `False`.
    """
    logs, own = flat(logs), model.get_metrics_result()
    differ = _merge(model.metrics, communicator, set(logs) != set(own), may_be_whole)
    merged = model.get_metrics_result()
    return _gather_logs(logs, own, merged, communicator) if differ or communicator.servers else merged


def flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested dicts of logs, as Keras shows them.

    A step that returns `{m.name: m.result() for m in self.metrics}` has those of `compile(metrics=...)` in one dict.

    Example:

    >>> flat({"loss": 0.5, "compile_metrics": {"mae": 0.25}})
    {'loss': 0.5, 'mae': 0.25}
    """
    numbers: dict[str, Any] = {}
    for name, value in logs.items():
        numbers |= flat(value) if isinstance(value, dict) else {name: value}
    return numbers


def _merge(
    metrics: Sequence[keras.metrics.Metric], communicator: Communicator, differ: bool, may_be_whole: bool
) -> bool:
    """Make every worker's metrics cover the data of all workers; return whether any worker has passed `differ`.

    A metric's states are summed: counts, totals, confusion matrices. A state that cannot be summed declares it by its
    `aggregation`, `"mean"` or `"only_first_replica"`, or its metric has a method `merge_state(metrics)`, which receives
    the metrics of the other workers.
    """
    metrics = [leaf for metric in metrics for leaf in leaves(metric)]
    states, own = [_state(metric) for metric in metrics], _results_of_own(metrics)
    rows = communicator.all_gather_rows(np.concatenate([[float(differ)], *states]))[: communicator.workers]
    ends = np.cumsum([1, *(state.size for state in states)])
    flags, *parts = np.split(rows, ends[:-1], axis=1)
    is_whole = may_be_whole and (rows[:, 1:] == rows[0, 1:]).all()
    if is_whole and not communicator.is_server:
        return bool(flags.any())
    for metric, all_ranks in zip(metrics, parts, strict=True):
        if is_whole:  # a server has seen no data
            _set_state(metric, all_ranks[0])
        elif hasattr(metric, "merge_state"):
            _set_state(metric, all_ranks[0])
            metric.merge_state([_copy(metric, state) for state in all_ranks[1:]])
        else:
            _set_state(metric, all_ranks.sum(axis=0), first=all_ranks[0], size=communicator.workers)
    if own and not is_whole:
        _check_sums(own, communicator)
    return bool(flags.any())


def _results_of_own(metrics: Sequence[keras.metrics.Metric]) -> dict[keras.metrics.Metric, float]:
    """Return the results of custom metrics whose states are summed; NaN for a result that is not a number."""
    found = {}
    for metric in metrics:
        (updates, *_) = [kind for kind in type(metric).__mro__ if "update_state" in vars(kind)]
        if not updates.__module__.startswith("keras.") and not hasattr(metric, "merge_state"):
            found[metric] = _scalar(metric.result())
    return found


def _scalar(result: Any) -> float:
    """Return a result as a number; NaN if it is not one."""
    if isinstance(result, dict) or np.ndim(keras.ops.convert_to_numpy(result)):
        return math.nan
    return float(_number(result))


_warned: set[str] = set()


def _check_sums(own: Mapping[keras.metrics.Metric, float], communicator: Communicator) -> None:
    """Warn if a merged result is far from each worker's: the state that it was computed from may not be a sum."""
    rows = communicator.all_gather_rows(np.array(list(own.values())))[: communicator.workers]
    for metric, results in zip(own, rows.T, strict=True):
        merged, margin = _scalar(metric.result()), 0.1 * np.abs(results).max()
        is_far = not (results.min() - margin <= merged <= results.max() + margin)
        if is_far and np.isfinite([merged, *results]).all() and communicator.is_chief and metric.name not in _warned:
            _warned.add(metric.name)
            warnings.warn(
                "the state of a metric must be a sum: workers add up its variables. Received: "
                f"'{metric.name}' of {type(metric).__name__}, merged to {merged:.4g} from the workers' "
                f"{', '.join(f'{result:.4g}' for result in results)}. This is expected of a count. For a maximum or a "
                "running mean define `merge_state(metrics)` in the class",
                EasyScaleWarning,
                stacklevel=2,
            )


class MetricStates:
    """The states of every worker's metrics, as a part of the training state.

    Args:
        model: The model that has the metrics.
        communicator: The `Communicator`.
    """

    def __init__(self, model: keras.Model, communicator: Communicator):
        self._model, self._communicator = model, communicator

    @property
    def _leaves(self) -> list[keras.metrics.Metric]:
        return [leaf for metric in self._model.metrics for leaf in leaves(metric)]

    def describe(self) -> list[list]:
        """Return, for JSON, the class and name of each metric, and the size of its state.

        Names are without the suffixes that Keras numbers.
        """
        return [[type(leaf).__name__, re.sub(r"_\d+$", "", leaf.name), int(_state(leaf).size)] for leaf in self._leaves]

    def state(self) -> State:
        """Return the states, a row for each worker. All workers must call this."""
        states = [_state(leaf) for leaf in self._leaves]
        rows = self._communicator.all_gather_rows(np.concatenate([np.zeros(0), *states]))
        return State(self.describe(), {"metrics": rows[: self._communicator.workers]})

    def load(self, state: State) -> None:
        """Set states that `state` returned, also with another number of workers.

        If that differs, the chief's metrics receive the merged states of all workers, and the others' are reset.
        """
        communicator, rows, metrics = self._communicator, state.arrays["metrics"], self._leaves
        if not metrics:
            return
        ends = np.cumsum([_state(metric).size for metric in metrics])
        for metric, all_ranks in zip(metrics, np.split(rows, ends[:-1], axis=1), strict=True):
            if len(rows) == communicator.workers:
                _set_state(metric, all_ranks[min(communicator.rank, len(rows) - 1)])
            elif communicator.rank == 0:
                _set_state(metric, all_ranks.sum(axis=0), first=all_ranks[0], size=len(rows))
            else:
                metric.reset_state()


def restorer(metrics: Sequence[keras.metrics.Metric]) -> Callable[[], None]:
    """Return a function that restores this worker's metrics to their current values."""
    variables = [variable for metric in metrics for variable in metric.variables]
    values = [keras.ops.convert_to_numpy(variable).copy() for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    return restore


def average(values: Sequence[Any], communicator: Communicator) -> list[np.ndarray]:
    """Return the means over workers of numbers or arrays, as float64; where all are equal, the same bits."""
    arrays = [np.asarray(keras.ops.convert_to_numpy(value)) for value in values]
    row = np.concatenate([np.zeros(0), *(array.reshape(-1).astype("float64") for array in arrays)])
    rows = communicator.all_gather_rows(row)[: communicator.workers]
    mean = np.where((rows == rows[0]).all(axis=0), rows[0], rows.mean(axis=0))  # (x + x + x) / 3 may not be x
    parts = np.split(mean, np.cumsum([array.size for array in arrays])[:-1]) if arrays else []
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _gather_logs(logs: Mapping[str, Any], own: Mapping, merged: Mapping, communicator: Communicator) -> dict:
    """Return the logs of all workers, also on servers and on workers without data, which have none.

    If a log is a metric's result on all that have logs, the merged metric's result is used, else the mean over workers.

    Args:
        logs: The logs of this rank's steps.
        own: The results of this rank's metrics before they were merged.
        merged: The same afterwards.
        communicator: The `Communicator`.
    """
    local = {name: _number(value).tolist() for name, value in logs.items()}
    results = [
        name for name, value in local.items() if name in own and np.allclose(value, _number(own[name]), equal_nan=True)
    ]
    all_ranks = [
        [values, names]
        for values, names in communicator.all_gather_object([local, results])[: communicator.workers]
        if values
    ]
    shared = {}
    for name in all_ranks[0][0] if all_ranks else merged:
        if all(name in names for _, names in all_ranks):
            shared[name] = merged[name]
        else:
            shared[name] = np.mean([values[name] for values, _ in all_ranks], axis=0)
            if communicator.is_chief and any(values[name] != all_ranks[0][0][name] for values, _ in all_ranks):
                warnings.warn(
                    "what a step returns should be results of metrics, which are those of all data. Received: "
                    f"'{name}', of which the mean over workers is taken, each with its own data. Return the result of "
                    "a `keras.metrics.Metric`",
                    EasyScaleWarning,
                    stacklevel=2,
                )
    return shared


def _number(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value), "float64")


def leaves(metric: keras.metrics.Metric) -> list[keras.metrics.Metric]:
    """Return the metrics that a metric consists of: Keras combines those of `compile()` in one."""
    inner = getattr(metric, "metrics", None)
    return [leaf for child in inner for leaf in leaves(child)] if isinstance(inner, (list, tuple)) else [metric]


def _state(metric: keras.metrics.Metric) -> np.ndarray:
    values = [keras.ops.convert_to_numpy(variable) for variable in metric.variables]
    return np.concatenate([np.zeros(0), *(np.asarray(value, "float64").reshape(-1) for value in values)])


def _set_state(metric: keras.metrics.Metric, state: np.ndarray, first: np.ndarray | None = None, size: int = 1) -> None:
    start = 0
    for variable in metric.variables:
        part = slice(start, start := start + int(np.prod(variable.shape)))
        kind = getattr(variable, "aggregation", "sum")
        value = state[part] / size if kind == "mean" else state[part]
        if kind == "only_first_replica" and first is not None:
            value = first[part]
        variable.assign(value.reshape(variable.shape).astype(keras.backend.standardize_dtype(variable.dtype)))


def _copy(metric: keras.metrics.Metric, state: np.ndarray) -> keras.metrics.Metric:
    copy = type(metric).from_config(metric.get_config())
    _set_state(copy, state)
    return copy
