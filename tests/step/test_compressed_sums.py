"""Sums of gradients in a form: which vectors are, and what goes along to another run."""

import warnings

import numpy as np
import pytest

from easyscale import compression
from easyscale import exchange as exchanges
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.compression import ErrorFeedback, PowerSGD, RandomK
from easyscale.layout.bucket import plan
from easyscale.layout.specs import Spec
from easyscale.step.compressed_sums import CompressedSums

SHAPES = [(20, 30), (7,), (16, 25)]
(BUCKET,) = plan([Spec(shape, np.dtype("float32")) for shape in SHAPES])
NUMBERS = {0: 5, 1: 3, 2: 4}


def _steps(comm, sums, made, until):
    """Add up the gradients of these steps; return the last sum of them."""
    add_up = sums.way(exchanges.get("ring", comm), BUCKET, NUMBERS, gathers=True)
    vector = np.zeros(0)
    while made[0] < until:
        made[0] += 1
        generator = np.random.default_rng([comm.rank, made[0]])
        vector = generator.normal(size=BUCKET.length).astype("float32")
        add_up(vector)
    return vector


def test_a_vector_of_another_type_travels_as_it_is(run_ranks):
    def on_rank(comm):
        sums = CompressedSums(compression.get("int8"), comm, lambda: 0)
        return [
            sums.way(exchanges.get("ring", comm), plan([Spec((3,), np.dtype(dtype))])[0], {0: 0}, True) is None
            for dtype in ("float32", "float16", "float64")
        ]

    assert run_ranks(1, on_rank) == [[False, True, True]]


@pytest.mark.parametrize("form", [PowerSGD(12), PowerSGD(1000), ErrorFeedback(PowerSGD(12))], ids=repr)
def test_the_chief_is_told_if_no_gradient_gets_shorter(run_ranks, form):
    (line,) = _warnings(run_ranks, form)
    assert line == (
        f"a form must be shorter than some gradient. Received: compression={form}, and gradients of which the largest "
        "is (20, 30): all travel as they are. Use a lower rank, or leave `compression` out"
    )


@pytest.mark.parametrize("form", [PowerSGD(11), compression.get("int8"), RandomK(0.9)], ids=repr)
def test_nobody_is_told_if_one_gets_shorter(run_ranks, form):
    assert _warnings(run_ranks, form) == []


def _warnings(run_ranks, form):
    specs = [Spec(shape, np.dtype("float32")) for shape in SHAPES]
    with warnings.catch_warnings(record=True) as told:  # of all ranks: they are threads
        warnings.simplefilter("always")
        run_ranks(2, lambda comm: CompressedSums(form, comm, lambda: 0).warn_of_none(specs))
    return [str(one.message) for one in told]


@pytest.mark.parametrize(
    "form", [ErrorFeedback("int8"), RandomK(0.1), PowerSGD(2), PowerSGD(2, start_step=4)], ids=repr
)
def test_it_goes_on_with_the_same_bits(run_ranks, form):
    def on_rank(comm):
        made, memory = [0], SnapshotMemory()
        sums = CompressedSums(form, comm, lambda: made[0])
        _steps(comm, sums, made, until=5)
        memory.reserve(sums.specs())
        collected = sums.collect(memory)
        arrays = comm.all_gather_object({name: array.tolist() for name, array in collected.items()})[0]
        arrays = {name: np.array(array, "float32") for name, array in arrays.items()}
        expected = _steps(comm, sums, made, until=8)

        again, of_another_run = [0], [2]  # a process that has seen two exchanges before it goes on
        sums = CompressedSums(form, comm, lambda: of_another_run[0] + again[0])
        sums.load(5, arrays)
        assert sums.steps == 5
        add_up, vector = sums.way(exchanges.get("ring", comm), BUCKET, NUMBERS, gathers=True), None
        for step in (6, 7, 8):
            again[0] += 1
            vector = np.random.default_rng([comm.rank, step]).normal(size=BUCKET.length).astype("float32")
            add_up(vector)
        return expected, vector

    for expected, vector in run_ranks(3, on_rank):
        for slot in BUCKET.slots:
            np.testing.assert_array_equal(vector[slot.start : slot.stop], expected[slot.start : slot.stop])


def test_steps_are_those_of_its_own_optimizer(run_ranks):
    """The first of each of two models that train in turns is its first, and a vector more is of the same step."""

    def on_rank(comm):
        made, numbers = [0], {name: [] for name in "ab"}

        class Form(compression.Int8):
            name = "noted"

            def sum(self, way, vector, step, left_out=None, gathers=True):
                numbers[self.of].append(step.number)

        add_up = {}
        for name in numbers:
            form = Form()
            form.of = name
            sums = CompressedSums(form, comm, lambda: made[0])
            add_up[name] = sums.way(exchanges.get("ring", comm), BUCKET, NUMBERS, gathers=True)
        for name in "aabab":
            made[0] += 1
            for _ in range(2):
                add_up[name](np.zeros(BUCKET.length, "float32"))
        return numbers

    assert run_ranks(2, on_rank) == [{"a": [0, 0, 1, 1, 2, 2], "b": [0, 0, 1, 1]}] * 2


def test_other_workers_begin_with_equal_factors(run_ranks):
    """One has made three steps before it goes on with another, which has made none."""

    def on_rank(comm):
        made = [0]
        sums = CompressedSums(PowerSGD(2), comm, lambda: made[0])
        alone = comm.rank == 0 and comm.size > 1
        if alone:
            sums.load(3, {"factor/5": np.eye(30, 2, dtype="float32")})
        sums.shrink(7)
        return sums.steps, _steps(comm, sums, made, until=1)

    (steps, first), (_, second) = run_ranks(2, on_rank)
    assert steps == 7
    np.testing.assert_array_equal(first, second)
