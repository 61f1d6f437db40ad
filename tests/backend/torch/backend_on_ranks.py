"""What `Backend` promises, on PyTorch. Ranks of a check are threads."""

import contextlib
import functools
import json
import re
import sys
from pathlib import Path
from unittest import mock

import keras
import ml_dtypes
import numpy as np
import pytest
import torch
from structure import test_classes, test_public_names
from structure.package import MODULES

import easyscale
from easyscale import backend, exchange
from easyscale.backend.base import Feature
from easyscale.backend.torch import data, fused
from easyscale.communicator import run_ranks
from easyscale.layout.specs import specs_of
from easyscale.step.context import Accumulation, StepContext
from easyscale.step.gradients import Gradients
from easyscale.step.random_state import get_random_state, set_random_state
from easyscale.step.reduce_config import ReduceConfig
from easyscale.step.shared import Shared

FLOAT32 = np.dtype("float32")


def check_the_backend_is_keras_own():
    assert backend.get().name == keras.backend.backend() == "torch"


def check_an_execution_takes_as_many_batches_as_keras_counts():
    taken = []
    step = data.by_iterator(taken.append, steps_per_execution=3)
    batches = iter(range(7))
    for _ in range(3):
        step(batches)
    assert taken == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(StopIteration):
        step(batches)


def check_a_view_stays_what_it_is_when_the_variable_changes():
    for dtype in ("float32", "bfloat16", "int64", "bool"):
        variable = keras.Variable(np.zeros((2, 3)), dtype=dtype, trainable=False)
        view = backend.view_of(variable)
        variable.assign(np.ones((2, 3)))
        assert not view.any() and backend.view_of(variable).all()
        assert specs_of([variable]) == [((2, 3), view.dtype)]


def check_a_call_sees_the_memory_of_tensors_and_its_results_are_memory_of_its_own():
    gradient, returned, seen = torch.arange(4.0), np.ones(3, "float32"), []

    def call(array, number):
        seen.append((np.shares_memory(array, gradient.detach().numpy()), float(number)))
        return [returned]

    (tensor,) = backend.get().host_calls()(call, [gradient.requires_grad_(), 0.1], [((3,), FLOAT32)])
    returned[0] = 5.0
    shares = not backend.get().computes_on_gpus()
    assert seen == [(True, 0.1)] and tensor.tolist() == [5.0 if shares else 1.0, 1.0, 1.0]


def check_bfloat16_travels_as_it_is():
    gradient = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    spec = (2,), np.dtype(ml_dtypes.bfloat16)
    (twice,) = backend.get().host_calls()(lambda array: [array + array], [gradient], [spec])
    assert twice.dtype == torch.bfloat16 and twice.tolist() == [3.0, -4.0]


def check_a_gradient_of_some_rows_is_refused():
    rows = torch.sparse_coo_tensor([[0]], [[1.0]], (2, 1))
    with pytest.raises(ValueError, match="gradients must be dense tensors. Received: one of layout torch.sparse_coo"):
        backend.get().host_calls()(lambda array: None, [rows], [])


def check_random_numbers_go_on_where_they_were():
    state = json.loads(json.dumps(get_random_state(backend.get())))

    def draw():
        dropped = keras.layers.Dropout(0.5, seed=None)(keras.ops.ones((50,)), training=True)
        own = torch.rand(3, device=dropped.device).cpu()
        return torch.rand(3), own, np.random.uniform(size=3)

    first = draw()
    set_random_state(backend.get(), state)
    for one, other in zip(first, draw(), strict=True):
        np.testing.assert_array_equal(one, other)


def _gradients(comm, bucket_bytes=None):
    compiled = backend.get().compiled_update(comm, has_copies=False)
    return Gradients(
        ReduceConfig(exchange.get("ring", comm), bucket_bytes, fixed=True), Shared(comm, backend.get()), False, compiled
    )


def check_each_gradient_has_the_weight_of_its_samples():
    def on_rank(comm, bucket_bytes):
        variables = [keras.Variable(np.zeros(shape, "float32")) for shape in ([3], [2, 2], [1])]
        made = [torch.full(tuple(one.shape), float(number + comm.rank)) for number, one in enumerate(variables[:2])]
        means = _gradients(comm, bucket_bytes).reduce(StepContext(weight=comm.rank + 1), [*made, None], variables)
        return [one if one is None else keras.ops.convert_to_numpy(one) for one in means]

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
        own = torch.arange(6.0) * (comm.rank + 1)
        (mean,) = gradients.reduce(StepContext(), [own], [variable], shards=shards)
        return shards.parts[0], keras.ops.convert_to_numpy(mean)

    whole = np.zeros(6)
    for part, own in run_ranks(2, on_rank):
        whole[part] = own
    np.testing.assert_allclose(whole, 1.5 * np.arange(6))


def check_gradients_that_are_summed_up_travel_when_they_are_due():
    def on_rank(comm, due):
        moving, variable, sums = (keras.Variable([value]) for value in (float(comm.rank), 0.0, 5.0))
        accumulation = Accumulation(torch.tensor(due), [sums], may_overflow=False)
        context = StepContext(weight=4 if comm.rank == 0 else 12, moving=[moving])
        (mean,) = _gradients(comm).reduce(context, [torch.tensor([1.0 + comm.rank])], [variable], accumulation)
        return float(moving[0]), mean.item(), float(sums[0])

    for due, gradient, summed in ((False, [0.25, 1.5], [5.0, 5.0]), (True, [11.75] * 2, [0.0, 0.0])):
        found = list(zip(*run_ranks(2, functools.partial(on_rank, due=due)), strict=True))
        np.testing.assert_allclose(found, [[0.75, 0.75], gradient, summed])


def check_a_fused_step_is_keras_own_to_rounding():
    makers = {
        "Adam": lambda: keras.optimizers.Adam(0.01),
        "AdamW": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, amsgrad=True, clipvalue=0.5),
        "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "RMSprop": keras.optimizers.RMSprop,
    }
    for name, make in makers.items():
        assert fused.has_kernel(make()) == (name not in ("nesterov", "RMSprop"))
        for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-14)):
            own, other = (_steps(make(), dtype, steps) for steps in (contextlib.nullcontext(), fused.at_work()))
            for one, two in zip(own, other, strict=True):
                np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)


def _steps(optimizer, dtype, steps):
    generator = np.random.default_rng(0)
    variables = [keras.Variable(generator.normal(size=shape), dtype=dtype) for shape in ((7, 5), (100,))]
    with torch.no_grad(), steps:
        for _ in range(20):
            gradients = [generator.normal(size=tuple(variable.shape)).astype(dtype) for variable in variables]
            optimizer.apply([torch.tensor(one, device=variables[0].value.device) for one in gradients], variables)
    return [keras.ops.convert_to_numpy(one) for one in (*variables, *optimizer.variables)]


def check_every_feature_that_is_missing_is_refused_with_a_remedy():
    torch_backend = backend.get()
    assert torch_backend.remedies and set(torch_backend.remedies) <= set(Feature)
    for feature in torch_backend.remedies:
        with pytest.raises(ValueError, match="Received: KERAS_BACKEND=torch. .*, or set KERAS_BACKEND=tensorflow"):
            torch_backend.require(feature)


def check_the_document_has_a_row_for_each_feature_that_is_missing():
    document = (Path(__file__).parents[3] / "docs" / "backends.md").read_text()
    rows = re.findall(r"^\| (.*) \| yes \| refused \| .* \|$", document, re.MULTILINE)
    for row, feature in zip(rows, backend.get().remedies, strict=True):
        assert row.replace("`", "").startswith(feature.value.replace("`", ""))


def check_who_averages_as_well_is_refused():
    optimizer = easyscale.DistributedOptimizer("sgd", communicator="local")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with mock.patch.object(optimizer.workers.communicator, "size", 2):
        optimizer.workers.replicas.check_model(model)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            with pytest.raises(ValueError, match="`torch.distributed` must not be initialised .* group of 1"):
                optimizer.workers.replicas.check_model(model)
        finally:
            torch.distributed.destroy_process_group()
        with mock.patch.object(keras.distribution, "distribution", lambda: "a distribution"):
            with pytest.raises(ValueError, match="must not have a `keras.distribution`. Received: str, 2 processes"):
                optimizer.workers.replicas.check_model(model)


def check_what_holds_for_every_module_holds_for_those_of_torch():
    modules = [name for name in MODULES if name.startswith("easyscale.backend.torch")]
    for module in modules:
        test_public_names.test_every_public_function_and_class_has_a_docstring(module)
        test_classes.test_an_override_accepts_what_it_overrides_accepts(module)
    assert len(modules) == len(list(Path(sys.modules["easyscale.backend.torch"].__path__[0]).glob("*.py")))


def check_tensorflow_is_not_imported():
    assert "tensorflow" not in sys.modules


def check_an_optimizer_of_many_weights_without_a_kernel_is_told_of():
    weight = keras.Variable(np.zeros((1024, 1024), "float32"))
    told = {}
    for make in (keras.optimizers.Adagrad, keras.optimizers.Adam, keras.optimizers.SGD):  # which is one operation
        optimizer = make()
        optimizer.build([weight])
        told[make.__name__] = fused.advice([keras.optimizers.LossScaleOptimizer(optimizer), optimizer])
    assert "no one kernel for the update by Adagrad" in told["Adagrad"], told
    assert told["Adam"] is None and told["SGD"] is None, told
    optimizer = keras.optimizers.Adagrad()
    optimizer.build([keras.Variable([0.0])])
    assert fused.advice([optimizer]) is None
