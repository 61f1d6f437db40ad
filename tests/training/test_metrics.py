"""Copies of metrics, and how they are merged, on ranks that are threads."""

import functools
import warnings
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from easyscale.errors import EasyScaleWarning
from easyscale.training.parts import metrics
from easyscale.training.parts.metrics import MetricStates, merge_logs


class Largest(keras.metrics.Metric):
    """A maximum; its state is where `build` puts it, and `read` finds it."""

    def __init__(self, build, read):
        super().__init__(name="largest")
        self.read = read
        build(self, self.add_variable((), "zeros", name="largest"))

    def update_state(self, value):
        self.read(self).assign(keras.ops.maximum(self.read(self), value))

    def merge_state(self, metrics):
        for other in metrics:
            assert type(other) is type(self) and other.variables[0] is not self.variables[0]
            self.update_state(other.read(other))

    def result(self):
        return self.read(self) + 0.0


class Inner(keras.metrics.Metric):
    def __init__(self, variable):
        super().__init__(name="inner")
        self.variable = variable


class Slotted:
    __slots__ = ("__dict__", "owner")


def _cyclic(metric, variable):
    metric.state = Slotted()
    metric.state.owner, metric.state.variable = metric, variable


def _recursive(metric, variable):
    def read(depth):
        return read(depth - 1) if depth else variable

    metric.state = read


PLACES = {
    "attribute": (lambda metric, variable: setattr(metric, "state", variable), lambda metric: metric.state),
    "list": (lambda metric, variable: setattr(metric, "state", [[variable]]), lambda metric: metric.state[0][0]),
    "dict": (
        lambda metric, variable: setattr(metric, "state", {"a": (variable, 1)}),
        lambda metric: metric.state["a"][0],
    ),
    "inner metric": (
        lambda metric, variable: setattr(metric, "state", Inner(variable)),
        lambda metric: metric.state.variable,
    ),
    "object": (_cyclic, lambda metric: metric.state.variable),
    "function": (_recursive, lambda metric: metric.state(2)),
    "partial": (
        lambda metric, variable: setattr(metric, "state", functools.partial(max, [variable], key=lambda value: 0)),
        lambda metric: metric.state(),
    ),
    "variables alone": (lambda metric, variable: None, lambda metric: metric.variables[0]),
}


def _model(*children):
    """What `merge_logs` asks of a model."""
    results = {child.name: child for child in children}
    return SimpleNamespace(
        metrics=list(children),
        get_metrics_result=lambda: {name: child.result() for name, child in results.items()},
    )


@pytest.mark.parametrize("place", PLACES)
def test_merge_state_receives_copies_wherever_the_metric_has_its_variables(run_ranks, place):
    def on_rank(comm):
        metric = Largest(*PLACES[place])
        metric.update_state([3.0, 7.0, 5.0][comm.rank])
        merged = merge_logs(_model(metric), comm, {"largest": metric.result()})
        return float(merged["largest"]), float(metric.result())

    assert run_ranks(3, on_rank) == [(7.0, 7.0)] * 3


def test_a_copy_shares_all_but_what_leads_to_variables():
    metric = Largest(*PLACES["attribute"])
    metric.encoder, metric.names, metric.mode = keras.layers.Dense(1), ["a"], SimpleNamespace(of="max")
    copied = metrics._copy(metric, np.array([4.0]))
    assert copied.encoder is metric.encoder and copied.mode is metric.mode and copied.name == metric.name
    copied.names.append("b")
    assert metric.names == ["a"]
    assert float(copied.result()) == 4.0 and float(metric.result()) == 0.0


def test_a_metric_that_cannot_be_copied_is_one_line():
    class Closed:
        def __copy__(self):
            raise TypeError("closed")

    def build(metric, variable):
        metric.state = Closed()
        metric.state.variable = variable

    with pytest.raises(ValueError, match=r"^`merge_state` receives copies .* 'largest' of Largest, .*closed. Keep "):
        metrics._copy(Largest(build, lambda metric: metric.state.variable), np.zeros(1))


def test_a_metric_with_merge_state_but_no_variables_is_reported(run_ranks):
    class Listed(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="listed")
            self.values = []

        def merge_state(self, metrics):
            for other in metrics:
                self.values += other.values

        def result(self):
            return float(len(self.values))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run_ranks(2, lambda comm: merge_logs(_model(Listed()), comm, {"listed": 0.0}))
    assert (
        len([one for one in seen if one.category is EasyScaleWarning and "'listed' of Listed" in str(one.message)]) == 1
    )


def test_states_of_a_metric_with_merge_state_are_merged_for_fewer_workers(run_ranks):
    def save(comm):
        metric = Largest(*PLACES["attribute"])
        metric.update_state([3.0, 7.0, 5.0][comm.rank])
        return MetricStates(_model(metric), comm).state()

    state, *_ = run_ranks(3, save)

    def load(comm):
        metric = Largest(*PLACES["attribute"])
        MetricStates(_model(metric), comm).load(state)
        return float(metric.result())

    assert run_ranks(2, load) == [7.0, 0.0]


def _means(comm, *names):
    """Metrics of means, which differ; rank `r` has `r + 1` values."""
    children = [keras.metrics.Mean(name=name) for name in names]
    for index, child in enumerate(children):
        for number in range(comm.rank + 1):
            child.update_state(float(10 * index + 3 * comm.rank + number))
    return children


@pytest.mark.parametrize(
    "names, key, expected",
    [
        (("total_loss", "kl_loss"), "loss", 0),
        (("total_loss", "kl_loss"), "kl", 1),
        (("total_loss", "other"), "another", 1),
        (("mean", "mean"), "first", 0),
        (("mean", "mean"), "mean", 1),
        (("loss", "total"), "loss", 1),
    ],
)
def test_a_log_under_another_name_is_the_merged_result(run_ranks, names, key, expected):
    def on_rank(comm):
        children = _means(comm, *names)
        return float(merge_logs(_model(*children), comm, {key: children[expected].result()})[key])

    values = [[10 * expected + 3 * rank + number for number in range(rank + 1)] for rank in range(3)]
    np.testing.assert_allclose(run_ranks(3, on_rank), [np.mean(sum(values, []))] * 3, rtol=1e-6)


def test_a_log_that_is_several_metrics_on_one_rank_is_that_of_all(run_ranks):
    def on_rank(comm):
        first, second = _means(comm, "first", "second")
        if comm.rank == 0:  # both have the same result there
            first.reset_state()
            first.update_state(second.result())
        return float(merge_logs(_model(first, second), comm, {"log": second.result()})["log"])

    np.testing.assert_allclose(run_ranks(2, on_rank), [(10 + 13 + 14) / 3] * 2, rtol=1e-6)


def test_a_log_that_a_compiled_step_has_rounded_otherwise(run_ranks):
    def on_rank(comm):
        (child,) = _means(comm, "total_loss")
        child.update_state(0.1)
        log = np.nextafter(np.float32(child.result()), np.float32(9))
        return float(merge_logs(_model(child), comm, {"loss": log})["loss"])

    np.testing.assert_allclose(run_ranks(2, on_rank), [(0 + 0.1 + 3 + 4 + 0.1) / 5] * 2, rtol=1e-6)


def test_a_log_of_no_metric_is_the_mean_over_ranks(run_ranks):
    def on_rank(comm):
        (child,) = _means(comm, "total_loss")
        return float(merge_logs(_model(child), comm, {"loss": 2 * child.result() + 1})["loss"])

    with pytest.warns(EasyScaleWarning, match="'loss', which is not the result of any metric .* Return `result"):
        assert run_ranks(2, on_rank) == [(1 + 8) / 2] * 2
