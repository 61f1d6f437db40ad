"""What every backend must give, of the one that Keras uses here."""

import json
from importlib.util import find_spec

import keras
import numpy as np
import pytest
import tensorflow as tf

from easyscale import backend
from easyscale.keras_internals import native_of
from easyscale.layout.specs import specs_of
from easyscale.parallel.split.sliced_variable import SlicedVariable
from easyscale.step import equality
from easyscale.step.random_state import get_random_state, set_random_state

FLOAT64 = np.dtype("float64")


def test_the_backend_is_keras_own():
    assert backend.get().name == keras.backend.backend()
    assert backend.get() is backend.get()


def test_graphs_of_several_objects_are_no_retracing_of_one(caplog):
    class Doubled:
        def __init__(self):
            self.run = backend.get().graph(self._run)

        def _run(self, tensor):
            return 2 * tensor

    tf.get_logger().addHandler(caplog.handler)
    try:
        for size in range(1, 12):
            assert Doubled().run(tf.ones(size)).shape == (size,)
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert not caplog.records


def test_a_backend_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    with pytest.raises(
        ValueError, match="must be 'jax' or 'tensorflow' or 'torch'. Received: 'numpy'. Set KERAS_BACKEND=tensorflow"
    ):
        backend.get()


@pytest.mark.parametrize("name", backend.available())
def test_every_backend_has_the_same_files(name):
    for file in ("backend", "host_calls", "variables", "tensors", "compiled_update", "whole_batch", "between_graph"):
        assert find_spec(f"easyscale.backend.{name}.{file}") is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_view_stays_what_it_is_when_the_variable_changes(dtype):
    variable = keras.Variable(np.zeros((2, 3)), dtype=dtype)
    view, value = backend.view_of(variable), backend.value_of(variable)
    variable.assign(np.ones((2, 3)))
    assert not view.any() and not value.any()
    assert backend.view_of(variable).all()
    assert specs_of([variable]) == [((2, 3), view.dtype)]


def test_a_view_is_no_copy():
    variable = keras.Variable(np.zeros(1000, "float32"))
    assert np.shares_memory(backend.view_of(variable), backend.view_of(variable))
    assert not np.shares_memory(backend.view_of(variable), backend.value_of(variable))


def test_a_variable_that_holds_nothing_has_its_shape_again_with_its_next_value():
    variable = keras.Variable(np.zeros((3, 4)), dtype="float32")
    native, hold = native_of(variable), backend.get().hold
    hold(native, None)
    assert native.numpy().nbytes == 0
    hold(native, np.ones((3, 4), "float32"))
    variable.assign_add(np.ones((3, 4)))
    np.testing.assert_array_equal(backend.value_of(variable), np.full((3, 4), 2.0))


def test_a_slice_and_its_whole_are_each_what_the_graphs_made_of_them_go_on_with(run_ranks):
    def on_rank(comm):
        variable = keras.Variable(np.arange(10.0).reshape(2, 5), dtype="float32")
        sliced = SlicedVariable(variable, 1, 1, comm, backend.get())
        before, during = (backend.get().graph(lambda: keras.ops.sum(variable)) for _ in range(2))
        seen = [float(before())]
        for factor in (1.0, 2.0):
            sliced.slice()
            variable.assign(factor * keras.ops.convert_to_tensor(variable))
            seen.append((tuple(variable.shape), float(during())))  # traced the first time
            sliced.unite(sliced.collect())
            seen.append((tuple(variable.shape), float(before())))
        return seen

    widths, sums = (2, 3), (0 + 1 + 5 + 6, 2 + 3 + 4 + 7 + 8 + 9)
    for rank, seen in enumerate(run_ranks(2, on_rank)):
        own = [((2, widths[rank]), factor * sums[rank]) for factor in (1, 2)]
        assert seen == [45, own[0], ((2, 5), 45), own[1], ((2, 5), 90)]


def test_texts_are_compared_as_well():
    variable = tf.Variable(["a", "b"])
    assert backend.view_of(variable).tolist() == [b"a", b"b"]
    assert specs_of([variable])[0].dtype == object


def test_what_a_call_returns_becomes_a_variables_memory():
    raw = np.zeros(64 * 4 + 64, np.uint8)
    memory = raw[-raw.ctypes.data % 64 :][: 64 * 4].view("float32")  # aligned to 64 bytes
    variable, calls = keras.Variable(np.ones((8, 8), "float32")), backend.get().host_calls()

    @tf.function
    def step():
        (tensor,) = calls(lambda: [memory], [], [((64,), memory.dtype)])
        backend.get().assign(variable, tensor)

    step()
    assert tuple(variable.shape) == (8, 8)
    assert np.shares_memory(backend.view_of(variable), memory)


def test_calls_of_a_step_are_made_in_order_and_their_results_have_shapes():
    calls, seen = backend.get().host_calls(), []

    def note(number):
        seen.append((int(number), number.dtype.name))

    @tf.function
    def step(rows):
        for number in range(10):
            calls(note, [float(number)], [])
        doubled, count = calls(
            lambda rows: [2 * rows, np.int64(len(rows))], [rows], [((None, 2), FLOAT64), ((), "int64")]
        )
        assert doubled.shape == (None, 2) and count.shape == ()
        return doubled, count

    doubled, count = step(tf.ones((3, 2), tf.float64))
    assert seen == [(number, "float64") for number in range(10)]
    assert int(count) == 3
    np.testing.assert_array_equal(doubled, np.full((3, 2), 2.0))


def test_random_numbers_go_on_where_they_were():
    state = json.loads(json.dumps(get_random_state(backend.get())))
    first = tf.random.get_global_generator().uniform([3]).numpy(), np.random.uniform(size=3)
    set_random_state(backend.get(), state)
    second = tf.random.get_global_generator().uniform([3]).numpy(), np.random.uniform(size=3)
    np.testing.assert_array_equal(first, second)


def test_rows_stay_rows():
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([1, 1]), tf.constant([5, 2]))
    scaled = backend.get().scaled(rows, 10)
    assert isinstance(scaled, tf.IndexedSlices)
    np.testing.assert_array_equal(scaled.values, [[10.0, 20.0], [30.0, 40.0]])
    np.testing.assert_array_equal(scaled.indices, [1, 1])
    np.testing.assert_array_equal(backend.get().sums_of_squares([rows, tf.constant([2.0])]), [30.0, 4.0])


def test_variables_become_equal_and_a_difference_is_seen(run_ranks):
    def on_rank(comm):
        variables = [keras.Variable(np.full(5, comm.rank, "float32")), tf.Variable(["a"])]
        equality.start_equal(comm, backend.get(), variables, root=1)
        return backend.value_of(variables[0]).tolist(), equality.check_equal(comm, backend.get(), variables[:1], 1)

    (first, digest), (second, other) = run_ranks(2, on_rank)
    assert first == second == [1.0] * 5
    assert digest.tolist() == other.tolist()
