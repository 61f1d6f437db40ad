"""Forms in which vectors travel: each for itself, and on its way through each exchange."""

import numpy as np
import pytest
from forms import own_forms

from easyscale import exchange as exchanges
from easyscale.compression import PackedMessages, Packing
from easyscale.exchange.compressed import Compressed

FORMS = {name: form for name, form in own_forms().items() if issubclass(form, Packing)}


class Steps(Packing):
    """A form as somebody adds one: 127 steps up and 127 down, each as long as a power of two says."""

    name = "steps"
    error = 2.0**-7

    def nbytes(self, length):
        return 4 + length

    def pack(self, vector):
        step = np.float32(2.0 ** np.ceil(np.log2(max(np.abs(vector).max(initial=0), 1e-30) / 127)))
        with np.errstate(invalid="ignore"):  # of what is not finite `step` is not, either
            steps = np.rint(vector / step).astype(np.int8)
        return np.concatenate([np.array([step]).view(np.uint8), steps.view(np.uint8)])

    def unpack(self, message, vector):
        with np.errstate(invalid="ignore"):
            vector[:] = message[:4].view("float32") * message[4:].view(np.int8)


ALL = {**FORMS, "steps": Steps}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("length", [0, 1, 7, 1000])
def test_a_vector_comes_back_as_near_as_is_said(name, length):
    form, vector = ALL[name](), np.random.default_rng(length).normal(size=length).astype("float32")
    message, back = form.pack(vector), np.full(length, np.nan, "float32")
    assert message.dtype == np.uint8
    assert message.size == form.nbytes(length)
    form.unpack(message, back)
    assert np.abs(back - vector).max(initial=0) <= form.error * np.abs(vector).max(initial=0)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_what_is_no_number_stays_none(name):
    form, vector = ALL[name](), np.array([np.nan, np.inf, -np.inf, 0, 1], "float32")
    back = np.empty_like(vector)
    form.unpack(form.pack(vector), back)
    np.testing.assert_array_equal(back, vector)


NAN_OF_ALL_BITS = np.array([0x7FFFFFFF], "uint32").view("float32")[0]  # one more in its last bit is -0.0


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [np.nan, NAN_OF_ALL_BITS, np.inf, -np.inf], ids=["nan", "all bits", "inf", "-inf"])
def test_what_is_not_finite_stays_so(name, value):
    form, vector = ALL[name](), np.array([0, value, 1], "float32")
    back = np.empty_like(vector)
    form.unpack(form.pack(vector), back)
    assert not np.isfinite(back[1])


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("name", exchanges.available())
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("length", [1, 1000])
def test_an_exchange_sums_what_travels_in_a_form(run_ranks, name, form, size, length):
    vectors = np.random.default_rng(size).normal(size=(size, length)).astype("float32")

    def on_rank(comm):
        buffer, whole = vectors[comm.rank].copy(), exchanges.get(name, comm)
        Compressed(whole, ALL[form]()).allreduce(buffer)
        return buffer

    sums = run_ranks(size, on_rank)
    bound = 2 * size * ALL[form].error * np.abs(vectors).sum(axis=0).max()  # rounded at each rank on the way
    for buffer in sums:
        np.testing.assert_allclose(buffer, vectors.sum(axis=0), rtol=0, atol=bound)
        np.testing.assert_array_equal(buffer, sums[0])


class Rounder(Packing):
    """A form in which a number that has come back packs to another message than it came in."""

    name = ""
    error = 0.5

    def nbytes(self, length):
        return 4 * length

    def pack(self, vector):
        return (vector * np.float32(0.75)).view(np.uint8)

    def unpack(self, message, vector):
        vector[:] = message.view("float32")


@pytest.mark.parametrize("name", ["parameter_server", "ring", "tree"])
def test_who_passes_a_message_on_sends_it_as_it_came(run_ranks, name):
    def on_rank(comm):
        buffer = np.ones(1000, "float32")
        Rounder().gather(exchanges.get(name, comm), buffer)
        return buffer

    for buffer in run_ranks(5, on_rank):
        np.testing.assert_array_equal(buffer, np.full(1000, 1.0 if name == "parameter_server" else 0.75))


@pytest.mark.parametrize("form", ALL)
def test_less_is_sent(run_ranks, form):
    def on_rank(comm):
        ring, sent = exchanges.get("ring", comm), []
        for exchange in (ring, Compressed(ring, ALL[form]())):
            before = comm.sent.bytes
            exchange.allreduce(np.zeros(4000, "float32"))
            sent.append(comm.sent.bytes - before)
        return sent

    for whole, packed in run_ranks(4, on_rank):
        assert whole == 6 * 4000
        assert packed == 6 * ALL[form]().nbytes(1000)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_half_types_travel_as_such(run_ranks, dtype):
    import ml_dtypes

    half = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def on_rank(comm):
        buffer = np.full(1000, comm.rank + 1, half)
        exchanges.get("ring", comm).allreduce(buffer)
        return comm.sent.bytes, buffer

    for sent, buffer in run_ranks(4, on_rank):
        assert sent == 6 * 500
        np.testing.assert_array_equal(buffer, np.full(1000, 10, half))


class Longer(Steps):
    name = ""

    def pack(self, vector):
        return np.append(super().pack(vector), np.uint8(0))


class Numbers(Steps):
    name = ""

    def pack(self, vector):
        return vector[: 4 + len(vector)]


@pytest.mark.parametrize("form", [Longer(), Numbers()])
def test_a_form_whose_messages_are_not_as_long_as_it_says_is_told_so(run_ranks, form):
    """Before they are sent: others would wait for so many bytes."""

    def on_rank(comm):
        with pytest.raises(ValueError, match=r"^`pack` of a form must return as many bytes as its `nbytes` says\. Rec"):
            PackedMessages(comm, form).isend(np.ones(10, "float32"), 1 - comm.rank)

    run_ranks(2, on_rank)
