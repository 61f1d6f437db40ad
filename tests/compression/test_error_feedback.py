"""What is left out of a sum: nothing else is, no rank has it twice, and it comes with the next steps."""

import numpy as np
import pytest
from forms import own_forms

from easyscale import compression
from easyscale import exchange as exchanges
from easyscale.compression import ErrorFeedback, Packing, Span, StepOfForm
from easyscale.exchange import Exchange
from easyscale.layout.bucket import plan
from easyscale.layout.specs import Spec
from easyscale.step.compressed_sums import CompressedSums

LENGTH = 1200
SHAPES = [(30, 20), (600,)]
SPANS = [Span(0, 0, 600, (30, 20)), Span(1, 600, 1200, (600,))]
# The exchange, ranks, and how many of them are on each node.
WAYS = [
    ("ring", 2, None),
    ("ring", 5, None),
    ("tree", 5, None),
    ("parameter_server", 3, (1, 1, 1)),
    ("hierarchical", 4, (2, 2)),
    ("hierarchical:tree", 5, (2, 2, 1)),
]


class Signs(Packing):
    """As coarse as a form can be: only whether a number is positive, and how large all are on average."""

    name = "signs"
    error = 1.0

    def nbytes(self, length):
        return 4 + length

    def pack(self, vector):
        scale = np.array([np.abs(vector).mean()], "float32")
        return np.concatenate([scale.view("uint8"), (vector > 0).view("uint8")])

    def unpack(self, message, vector):
        vector[:] = message[:4].view("float32") * (2 * message[4:].astype("float32") - 1)


# Each form; of those that choose some of 1,200 numbers, with so many that it does not take hundreds of steps.
ALL = {name: cls() for name, cls in own_forms().items()}
ALL |= {"top_k": compression.TopK(0.1), "random_k": compression.RandomK(0.1), "signs": Signs()}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("exchange", "size", "nodes"), WAYS)
def test_the_sum_and_what_is_left_out_make_what_all_have_given(run_ranks, name, exchange, size, nodes):
    given = np.random.default_rng(size).normal(size=(size, LENGTH)).astype("float32")

    def on_rank(comm):
        vector, left_out = given[comm.rank].copy(), np.zeros(LENGTH, "float32")
        way = exchanges.get(exchange, comm)
        ALL[name].sum(way, vector, StepOfForm(7, SPANS, {}), left_out)
        return vector, left_out

    found = run_ranks(size, on_rank, nodes=nodes)
    left_out = sum(of_rank.astype("float64") for _, of_rank in found)
    np.testing.assert_allclose(found[0][0] + left_out, given.sum(axis=0, dtype="float64"), rtol=0, atol=1e-4)
    for vector, _ in found:
        np.testing.assert_array_equal(vector, found[0][0])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("exchange", "size", "nodes"), [WAYS[0], WAYS[3], WAYS[4]])
def test_an_owner_has_its_part_of_such_a_sum_where_it_does_not_go_back(run_ranks, name, exchange, size, nodes):
    given = np.random.default_rng(size).normal(size=(size, LENGTH)).astype("float32")

    def on_rank(comm):
        vector, left_out = given[comm.rank].copy(), np.zeros(LENGTH, "float32")
        way = exchanges.get(exchange, comm)
        ALL[name].sum(way, vector, StepOfForm(7, SPANS, {}), left_out, gathers=False)
        return way.owned(LENGTH), vector, left_out

    found = run_ranks(size, on_rank, nodes=nodes)
    left_out = sum(of_rank.astype("float64") for *_, of_rank in found)
    for own, vector, _ in found:
        expected = given[:, own].sum(axis=0, dtype="float64")
        np.testing.assert_allclose(vector[own] + left_out[own], expected, rtol=0, atol=1e-4)


def _errors(run_ranks, form, steps):
    """How far the mean of the sums of so many equal steps is from the sum, as a part of it."""
    size = 3
    given = np.random.default_rng(0).normal(size=(size, LENGTH)).astype("float32")
    (bucket,) = plan([Spec(shape, np.dtype("float32")) for shape in SHAPES])

    def on_rank(comm):
        made, total = [0], np.zeros(LENGTH)
        sums = CompressedSums(form, comm, lambda: made[0])
        add_up = sums.way(exchanges.get("ring", comm), bucket, {0: 0, 1: 1}, gathers=True)
        far = []
        for step in range(1, max(steps) + 1):
            vector = np.full(bucket.length, np.nan, "float32")  # between slots there is anything
            for slot in bucket.slots:
                vector[slot.start : slot.stop] = given[comm.rank][600 * slot.index : 600 * (slot.index + 1)]
            add_up(vector)
            made[0] += 1
            for slot in bucket.slots:
                total[600 * slot.index : 600 * (slot.index + 1)] += vector[slot.start : slot.stop]
            if step in steps:
                far.append(np.linalg.norm(total / step - given.sum(axis=0)) / np.linalg.norm(given.sum(axis=0)))
        return far

    return run_ranks(size, on_rank)[0]


@pytest.mark.parametrize("name", ALL)
def test_over_many_steps_every_number_arrives(run_ranks, name):
    form = ALL[name]
    early, late = _errors(run_ranks, form if form.keeps_error else ErrorFeedback(form), [20, 200])
    assert late <= early / 3 or late < 1e-6


def test_without_a_residual_it_does_not(run_ranks):
    early, late = _errors(run_ranks, Signs(), [20, 100])
    assert late > 0.99 * early > 0.1


class ByCopies(Exchange):
    """Sends copies of what it is given to rank 0, and back."""

    def owned(self, length):
        return slice(0, length if self.communicator.rank == 0 else 0)

    def _reduce(self, buffer):
        comm = self.communicator
        if comm.rank > 0:
            comm.isend(buffer.copy(), 0).wait()
        else:
            for rank in range(1, comm.size):
                comm.ireceive(other := np.empty_like(buffer), rank).wait()
                buffer += other

    def _gather(self, buffer):
        raise NotImplementedError


def test_what_is_left_out_of_a_copy_is_nobodys(run_ranks):
    def on_rank(comm):
        if comm.rank == 0:
            return None
        vector = np.ones(100, "float32")
        with pytest.raises(ValueError, match="an exchange that sends parts of the vector that it is given") as raised:
            Signs().sum(
                ByCopies().connect(comm), vector, StepOfForm(0, [], {}), np.zeros(100, "float32"), gathers=False
            )
        return str(raised.value)

    assert "\n" not in run_ranks(2, on_rank)[1]


@pytest.mark.parametrize("form", ["auto", {"name": "auto"}, ErrorFeedback("int8"), None], ids=repr)
def test_it_is_of_one_form_that_has_none(form):
    with pytest.raises(ValueError, match=r"^`form` must be a form without error feedback\. Received: form=.*'int8'$"):
        ErrorFeedback(form)
