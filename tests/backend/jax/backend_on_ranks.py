"""What `Backend` promises, on JAX. Ranks of a check are threads."""

import functools
import gc
import re
import sys
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
from keras.src.backend.jax import trainer
from structure import test_classes, test_public_names
from structure.package import MODULES

import easyscale
from easyscale import backend, exchange, keras_internals
from easyscale.backend.base import Feature
from easyscale.backend.jax import foreign_calls
from easyscale.backend.jax.graph import Graph
from easyscale.communicator import run_ranks
from easyscale.layout.specs import specs_of
from easyscale.step.context import Accumulation, StepContext
from easyscale.step.gradients import Gradients
from easyscale.step.reduce_config import ReduceConfig
from easyscale.step.shared import Shared

FLOAT32 = np.dtype("float32")


def check_the_backend_is_keras_own():
    assert backend.get().name == keras.backend.backend() == "jax"


def check_batches_are_taken_one_by_one_where_keras_would_stack_them():
    assert backend.get().name == "jax"  # which has it so
    x = np.arange(14.0, dtype="float32").reshape(7, 2)
    passes = trainer.JAXEpochIterator(x, batch_size=2, steps_per_execution=2)
    batches = [keras.tree.flatten(taken)[0] for taken in keras_internals.batch_by_batch(passes._get_iterator())]
    assert [len(batch) for batch in batches] == [2, 2, 2, 1]
    np.testing.assert_array_equal(np.concatenate(batches), x)
    stacks = keras_internals.release_of(keras.__version__) >= (3, 16)
    first = keras.tree.flatten(next(passes._get_iterator()))[0]  # as Keras's own steps take it
    assert first.shape == ((2, 2, 2) if stacks else (2, 2))


def check_a_view_stays_what_it_is_when_the_variable_changes():
    for dtype in ("float32", "bfloat16", "int32", "bool"):
        variable = keras.Variable(np.zeros((2, 3)), dtype=dtype, trainable=False)
        view = backend.view_of(variable)
        variable.assign(np.ones((2, 3)))
        assert not view.any() and backend.view_of(variable).all()
        assert specs_of([variable]) == [((2, 3), view.dtype)]


def check_a_call_sees_the_memory_of_arrays_and_its_results_are_memory_of_its_own():
    gradient, returned, seen = jnp.arange(4.0), np.ones(3, "float32"), []

    def call(array, number):
        seen.append((np.shares_memory(array, np.asarray(gradient)), float(number)))
        return [returned]

    (tensor,) = backend.get().host_calls()(call, [gradient, 0.1], [((3,), FLOAT32)])
    returned[0] = 5.0
    assert seen == [(True, 0.1)] and tensor.tolist() == [1.0, 1.0, 1.0]


def check_bfloat16_travels_as_it_is():
    gradient = jnp.asarray([1.5, -2.0], jnp.bfloat16)
    spec = (2,), np.dtype(ml_dtypes.bfloat16)
    (twice,) = backend.get().host_calls()(lambda array: [array + array], [gradient], [spec])
    assert twice.dtype == jnp.bfloat16 and twice.tolist() == [3.0, -4.0]


def check_compiled_code_calls_python_in_the_order_of_its_trace():
    """Also where no value goes from one call to the next, inside of a gradient, and if nothing uses the last one."""
    calls, seen = backend.get().host_calls(), []
    spec = (3,), FLOAT32

    def noted(name):
        def call(*arrays):
            seen.append((name, [array.tolist() for array in arrays]))
            return [2 * array for array in arrays]

        return call

    def step(x):
        def loss(x):
            (twice,) = calls(noted("loss"), [x], [spec])
            return jnp.sum(x * twice)

        calls(lambda array: seen.append(("first", array.tolist())), [x], [])
        gradient = jax.grad(loss)(x)
        (mean,) = calls(noted("mean"), [gradient], [spec])
        calls(lambda number: seen.append(("last", float(number))), [0.1], [])
        return mean

    graph = Graph(step)
    for number in (1.0, 2.0):
        seen.clear()
        mean = graph(jnp.full(3, number))
        twice = [2 * number] * 3  # a call has no gradient
        assert mean.tolist() == [4 * number] * 3
        assert seen == [
            ("first", [number] * 3),
            ("loss", [[number] * 3]),
            ("mean", [twice]),
            ("last", 0.1),
        ]


def check_compiled_code_and_python_see_the_same_memory_of_every_type():
    dtypes = ["float32", "float16", "bfloat16", "int32", "uint8", "bool"]
    given = [jnp.asarray(np.arange(6).reshape(2, 3) % 2, dtype) for dtype in dtypes] + [jnp.asarray(7, "int32")]
    specs = [(tensor.shape, np.dtype(tensor.dtype)) for tensor in given]
    places = []

    def call(*arrays):
        assert [(array.shape, array.dtype) for array in arrays] == specs
        places.append([array.ctypes.data for array in arrays])
        return arrays

    def step(*tensors):
        return backend.get().host_calls()(call, tensors, specs)

    for _ in range(2):
        for tensor, back in zip(given, Graph(step)(*given), strict=True):
            np.testing.assert_array_equal(np.asarray(back), np.asarray(tensor))
    assert places[0] == [tensor.unsafe_buffer_pointer() for tensor in given]


def check_an_exception_in_a_call_of_compiled_code_ends_it_and_changes_no_variable():
    variable = keras.Variable([1.0])

    def fails(*_):
        raise KeyError("no such rank")

    def step():
        variable.assign(variable + 1)
        return backend.get().host_calls()(fails, [variable], [((1,), FLOAT32)])

    with pytest.raises(jax.errors.JaxRuntimeError, match="KeyError: 'no such rank'"):
        Graph(step)()
    assert variable.numpy().tolist() == [1.0]


def check_calls_of_a_function_that_is_gone_are_gone():
    """A job may compile thousands of models."""
    graph = Graph(lambda x: backend.get().host_calls()(lambda array: [array], [x], [((2,), FLOAT32)]))
    graph(jnp.ones(2))
    count = len(foreign_calls._calls)
    del graph
    gc.collect()
    assert len(foreign_calls._calls) < count


def check_an_interface_that_is_not_known_is_not_used():
    with (
        mock.patch.object(foreign_calls, "_MINORS", range(100, 102)),
        mock.patch.object(foreign_calls, "_registration", []),
    ):
        assert re.fullmatch(r"version 0\.\d+ of XLA's foreign .* \(known: 0\.100 to 0\.101\)", foreign_calls.why_not())
    assert foreign_calls.why_not() is None


def check_an_update_that_is_compiled_reads_and_writes_variables_that_it_was_not_given():
    given, other = keras.Variable([1.0]), keras.Variable([10.0])
    calls = []

    def apply(gradients, variables):
        calls.append(isinstance(gradients[0], jax.core.Tracer))
        variables[0].assign(variables[0] - gradients[0] * other)
        other.assign(other + 1.0)

    update = backend.get().compiled_update(None, has_copies=False)
    for _ in range(3):
        update(apply, [jnp.asarray([1.0])], [given])
    assert (given.numpy().tolist(), other.numpy().tolist()) == ([1.0 - 10 - 11 - 12], [13.0])
    assert calls == [True, True]  # to see which variables it uses, and to compile it


def _gradients(comm, bucket_bytes=None):
    compiled = backend.get().compiled_update(comm, has_copies=False)
    return Gradients(
        ReduceConfig(exchange.get("ring", comm), bucket_bytes, fixed=True), Shared(comm, backend.get()), False, compiled
    )


def check_each_gradient_has_the_weight_of_its_samples():
    def on_rank(comm, bucket_bytes):
        variables = [keras.Variable(np.zeros(shape, "float32")) for shape in ([3], [2, 2], [1])]
        made = [jnp.full(tuple(one.shape), float(number + comm.rank)) for number, one in enumerate(variables[:2])]
        means = _gradients(comm, bucket_bytes).reduce(StepContext(weight=comm.rank + 1), [*made, None], variables)
        return [one if one is None else np.asarray(one) for one in means]

    for bucket_bytes in (None, 8):
        for first, second, absent in run_ranks(3, functools.partial(on_rank, bucket_bytes=bucket_bytes)):
            mean = (1 * 0 + 2 * 1 + 3 * 2) / 6
            np.testing.assert_allclose(first, np.full(3, mean), rtol=1e-6)
            np.testing.assert_allclose(second, np.full((2, 2), 1 + mean), rtol=1e-6)
            assert absent is None


def check_a_worker_gets_the_parts_that_it_owns():
    def on_rank(comm):
        gradients, variable = _gradients(comm), keras.Variable(np.zeros(6, "float32"))
        shards = gradients.shard([variable])
        own = jnp.arange(6.0) * (comm.rank + 1)
        return shards.parts[0], gradients.reduce(StepContext(), [own], [variable], shards=shards)[0]

    whole = np.zeros(6)
    for part, own in run_ranks(2, on_rank):
        whole[part] = own
    np.testing.assert_allclose(whole, 1.5 * np.arange(6))


def check_gradients_that_are_summed_up_travel_when_they_are_due():
    def on_rank(comm, due):
        moving, variable, sums = (keras.Variable([value]) for value in (float(comm.rank), 0.0, 5.0))
        accumulation = Accumulation(jnp.asarray(due), [sums], may_overflow=False)
        context = StepContext(weight=4 if comm.rank == 0 else 12, moving=[moving])
        (mean,) = _gradients(comm).reduce(context, [jnp.asarray([1.0 + comm.rank])], [variable], accumulation)
        return float(moving.numpy()[0]), mean.item(), float(sums.numpy()[0])

    for due, gradient, summed in ((False, [0.25, 1.5], [5.0, 5.0]), (True, [11.75] * 2, [0.0, 0.0])):
        found = list(zip(*run_ranks(2, functools.partial(on_rank, due=due)), strict=True))
        np.testing.assert_allclose(found, [[0.75, 0.75], gradient, summed])


def check_every_feature_that_is_missing_is_refused_with_a_remedy():
    jax_backend = backend.get()
    assert jax_backend.remedies and set(jax_backend.remedies) <= set(Feature)
    for feature in jax_backend.remedies:
        with pytest.raises(ValueError, match="Received: KERAS_BACKEND=jax. .*, or set KERAS_BACKEND=tensorflow"):
            jax_backend.require(feature)


def check_the_document_has_a_row_for_each_feature_that_is_missing():
    document = (Path(__file__).parents[3] / "docs" / "backends.md").read_text()
    rows = re.findall(r"^\| (.*) \| yes \| .* \| refused \|$", document, re.MULTILINE)
    for row, feature in zip(rows, backend.get().remedies, strict=True):
        assert row.replace("`", "").startswith(feature.value.replace("`", ""))


def check_who_averages_as_well_is_refused():
    optimizer = easyscale.DistributedOptimizer("sgd", communicator="local")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with mock.patch.object(optimizer.workers.communicator, "size", 2):
        optimizer.workers.replicas.check_model(model)
        with mock.patch.object(keras.distribution, "distribution", lambda: "a distribution"):
            with pytest.raises(ValueError, match="must not have a `keras.distribution`. Received: str, 2 processes"):
                optimizer.workers.replicas.check_model(model)


def check_what_holds_for_every_module_holds_for_those_of_jax():
    modules = [name for name in MODULES if name.startswith("easyscale.backend.jax")]
    for module in modules:
        test_public_names.test_every_public_function_and_class_has_a_docstring(module)
        test_classes.test_an_override_accepts_what_it_overrides_accepts(module)
    assert len(modules) == len(list(Path(sys.modules["easyscale.backend.jax"].__path__[0]).glob("*.py")))


def check_tensorflow_is_not_imported():
    assert "tensorflow" not in sys.modules


def check_a_second_compile_counts_with_distribute_on_one_process():
    """JAX knows by its object what it has compiled: it must not take the steps for those of the loss before."""
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y, histories = 2 * x[:, :1], []
    for callbacks in ([], [easyscale.callbacks.Distribute()]):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        found = []
        for loss, metric in (("mse", "mae"), ("mae", "mse")):
            model.compile(keras.optimizers.SGD(0.01), loss, metrics=[metric])
            fit = {"epochs": 2, "verbose": 0, "shuffle": False, "validation_data": (x, y), "callbacks": [*callbacks]}
            found.append(model.fit(x, y, **fit).history)
            found.append(model.evaluate(x, y, verbose=0, return_dict=True))
        histories.append(found)
    for stock, own in zip(*histories, strict=True):
        assert stock.keys() == own.keys()
        for name in stock:
            np.testing.assert_allclose(own[name], stock[name], rtol=1e-5)
