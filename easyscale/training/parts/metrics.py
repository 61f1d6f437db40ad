"""Metrics of all workers together: their states are merged, not their results."""

import copy
import functools
import math
import re
import types
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
    local, own = {name: _number(value) for name, value in flat(logs).items()}, _results(model)
    differ = set(local) != set(flat(model.get_metrics_result()))
    if _merge(model.metrics, communicator, differ, may_be_whole) or communicator.servers:
        return _gather_logs(local, own, model, communicator)
    return model.get_metrics_result()


def _results(model: keras.Model) -> list[tuple[str, np.ndarray]]:
    """Return the names and results of a model's metrics, also of two that have one name.

    They are copies: a result may be a variable of the metric.
    """
    results = [model.get_metrics_result(), *({metric.name: metric.result()} for metric in model.metrics)]
    return [(name, _number(value)) for result in results for name, value in flat(result).items()]


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
        elif hasattr(metric, "merge_state") and not all_ranks.size:
            if communicator.is_chief and metric.name not in _warned:
                _warned.add(metric.name)
                warnings.warn(
                    "`merge_state` of a metric receives other workers' variables, and nothing else of their state. "
                    f"Received: '{metric.name}' of {type(metric).__name__}, which has no variables, so that each "
                    "worker's result is that of its own data. Keep its state in `add_variable(...)`",
                    EasyScaleWarning,
                    stacklevel=2,
                )
        else:
            _merge_states(metric, all_ranks)
    if own and not is_whole:
        _check_sums(own, communicator)
    return bool(flags.any())


def _merge_states(metric: keras.metrics.Metric, all_ranks: np.ndarray) -> None:
    """Set a metric to what all workers' states, one in each row, are together."""
    if hasattr(metric, "merge_state"):
        _set_state(metric, all_ranks[0])
        metric.merge_state([_copy(metric, state) for state in all_ranks[1:]])
    else:
        _set_state(metric, all_ranks.sum(axis=0), first=all_ranks[0], size=len(all_ranks))


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
                _merge_states(metric, all_ranks)
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


def _gather_logs(
    local: Mapping[str, np.ndarray],
    own: Sequence[tuple[str, np.ndarray]],
    model: keras.Model,
    communicator: Communicator,
) -> dict:
    """Return the logs of all workers, also on servers and on workers without data, which have none.

    If a log is the same metric's result on all that have logs, also under another name, the merged metric's result is
    used, else the mean over workers.

    Args:
        local: The logs of this rank's steps.
        own: The names and results of this rank's metrics before they were merged.
        model: The model, whose metrics are merged.
        communicator: The `Communicator`.
    """
    values = {name: value.tolist() for name, value in local.items()}
    equal = {name: _matches(name, value, own, is_exact=True) for name, value in local.items()}
    close = {name: _matches(name, value, own, is_exact=False) for name, value in local.items()}
    gathered = communicator.all_gather_object([values, equal, close])[: communicator.workers]
    all_ranks = [row for row in gathered if row[0]]
    if not all_ranks:
        return model.get_metrics_result()
    merged = _results(model)
    shared = {}
    for name, first in all_ranks[0][0].items():
        if common := _common(name, [row[1] for row in all_ranks]) or _common(name, [row[2] for row in all_ranks]):
            names = {index: merged[index][0] for index in common}
            similar = [index for index in names if names[index] in name or name in names[index]]
            equal_names = [index for index in similar if names[index] == name]
            shared[name] = merged[min(equal_names or similar or names)][1]
        else:
            numbers = [row[0][name] for row in all_ranks]
            shared[name] = np.mean(numbers, axis=0)
            if communicator.is_chief and any(number != first for number in numbers):
                warnings.warn(
                    "what a step returns should be results of metrics, which are those of all data. Received: "
                    f"'{name}', which is not the result of any metric of the model, so that it is the mean over "
                    "workers, each with its own data. Return `result()` of a `keras.metrics.Metric` that is an "
                    "attribute of the model, unchanged",
                    EasyScaleWarning,
                    stacklevel=2,
                )
    return shared


def _matches(name: str, log: np.ndarray, own: Sequence[tuple[str, np.ndarray]], is_exact: bool) -> list[int]:
    """Return the positions of the results that a log is, or, if not `is_exact`, may be: a compiled step may round."""
    found = []
    for index, (other, result) in enumerate(own):
        rtol, atol = (0.0, 0.0) if is_exact else (1e-5, 1e-8) if other == name else (1e-6, 0.0)
        if log.shape == result.shape and np.allclose(log, result, rtol, atol, equal_nan=True):
            found.append(index)
    return found


def _common(name: str, all_ranks: Sequence[Mapping[str, list[int]]]) -> set[int]:
    return set.intersection(*(set(matches.get(name, ())) for matches in all_ranks))


def _number(value: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(value), "float64")  # a copy


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
    """Return a copy of a metric that has another state.

    A metric of one's own need not have a `get_config`. So the copy has the attributes of the metric, with new variables
    wherever they lead to the metric's: in lists, dicts, inner metrics, functions and objects. All else is shared.
    """
    copies: dict[int, Any] = {
        id(variable): keras.Variable(
            "zeros", shape=variable.shape, dtype=variable.dtype, trainable=False, name=variable.name
        )
        for variable in metric.variables
    }
    holders = _holders(metric, copies)

    def replace(value: Any) -> Any:
        if id(value) in copies:
            return copies[id(value)]
        if id(value) not in holders:
            return value
        if isinstance(value, types.FunctionType):
            cells = tuple(types.CellType() for _ in value.__closure__ or ())
            new: Any = types.FunctionType(
                value.__code__, value.__globals__, value.__name__, value.__defaults__, cells or None
            )
            new.__kwdefaults__ = value.__kwdefaults__
            copies[id(value)] = new
            for cell, old in zip(cells, value.__closure__ or (), strict=True):
                for content in _content(old):
                    cell.cell_contents = replace(content)
            return new
        if isinstance(value, types.MethodType):
            return types.MethodType(replace(value.__func__), replace(value.__self__))
        if isinstance(value, functools.partial):
            keywords = {name: replace(argument) for name, argument in value.keywords.items()}
            return functools.partial(replace(value.func), *map(replace, value.args), **keywords)
        if isinstance(value, (tuple, frozenset)):
            base: Any = tuple if isinstance(value, tuple) else frozenset
            return base.__new__(type(value), [replace(item) for item in value])
        # the constructor of a metric, and pickle, would need its config
        new = object.__new__(type(value)) if isinstance(value, keras.metrics.Metric) else copy.copy(value)
        copies[id(value)] = new
        if isinstance(value, list):  # of the base class: Keras's lists and dicts track what is put in
            list.__setitem__(new, slice(None), [replace(item) for item in value])
        elif isinstance(value, dict):
            for key, item in value.items():
                dict.__setitem__(new, key, replace(item))
        elif isinstance(value, set):
            set.clear(new)
            set.update(new, map(replace, value))
        if hasattr(value, "__dict__"):
            vars(new).update({name: replace(item) for name, item in vars(value).items()})
        return new

    try:
        copied = replace(metric)
        if [*map(id, copied.variables)] != [id(copies[id(variable)]) for variable in metric.variables]:
            raise TypeError("`variables` has some that no attribute leads to")
    except Exception as error:
        raise ValueError(
            "`merge_state` receives copies of a metric, so what leads to its variables must be copyable. Received: "
            f"'{metric.name}' of {type(metric).__name__}, which raises {type(error).__name__}: {error}. Keep variables "
            "in attributes, lists or dicts of the metric"
        ) from error
    _set_state(copied, state)
    return copied


_FRAMEWORKS = {"jax", "jaxlib", "numpy", "tensorflow", "torch"}


def _contents(value: Any) -> list:
    """Return the objects that an object refers to, where a metric's variables may be."""
    if isinstance(value, types.FunctionType):
        return [content for cell in value.__closure__ or () for content in _content(cell)]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    atoms = (type, types.ModuleType, keras.Variable, keras.Layer, keras.optimizers.Optimizer)
    if isinstance(value, atoms) or type(value).__module__.partition(".")[0] in _FRAMEWORKS:
        return []
    items = value.values() if isinstance(value, dict) else value
    return [
        *(items if isinstance(value, (dict, list, tuple, set, frozenset)) else ()),
        *getattr(value, "__dict__", {}).values(),
    ]


def _content(cell: types.CellType) -> list:
    """Return what a cell of a closure has, in a list; an empty list if it has nothing yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _holders(metric: keras.metrics.Metric, variables: Mapping[int, Any]) -> set[int]:
    """Return the ids of the objects that lead from a metric to its variables, or back to it, and of its containers."""
    parents: dict[int, list[int]] = {}
    seen, pending = {id(metric): metric}, [metric]
    while pending:
        value = pending.pop()
        for content in _contents(value):
            parents.setdefault(id(content), []).append(id(value))
            if id(content) not in seen:
                seen[id(content)] = content
                pending.append(content)
    found = {id(metric), *(key for key, value in seen.items() if isinstance(value, (list, dict, set)))}
    ids = [id(metric), *variables]
    while ids:
        leading = set(parents.pop(ids.pop(), ()))
        found |= leading
        ids += leading
    return found
