"""The base class: which buffers it takes, and to which communicator it is connected."""

import numpy as np
import pytest

from easyscale import communicator
from easyscale import exchange as exchanges
from easyscale.exchange import Exchange
from easyscale.exchange.vectors import aligned


def _read_only():
    vector = np.zeros(3, "float32")
    vector.flags.writeable = False
    return vector


@pytest.mark.parametrize("verb", ["reduce", "gather", "allreduce"])
@pytest.mark.parametrize(
    "buffer, message",
    [
        ([1.0, 2.0], "`buffer` must be a NumPy vector. Received: list. It is summed in place"),
        (np.float32(1), "`buffer` must be a NumPy vector. Received: float32. It is summed in place"),
        (
            np.zeros((2, 3), "float32"),
            "`buffer` must be a contiguous vector. Received: shape (2, 3), strides (12, 4). "
            "Try `np.ascontiguousarray(array).reshape(-1)`",
        ),
        (
            np.zeros(6, "float32")[::2],
            "`buffer` must be a contiguous vector. Received: shape (3,), strides (8,). "
            "Try `np.ascontiguousarray(array).reshape(-1)`",
        ),
        (
            np.zeros(3, "uint8"),
            "`buffer` must be of one of the dtypes float16, bfloat16, float32, float64, int32, int64. Received: uint8",
        ),
        (
            np.zeros(3, ">f4"),
            "`buffer` must be of one of the dtypes float16, bfloat16, float32, float64, int32, int64. Received: >f4",
        ),
        (_read_only(), "`buffer` must be writeable. Received: a read-only vector. Try `array.copy()`"),
    ],
    ids=["list", "scalar", "matrix", "strided", "dtype", "byte_order", "read_only"],
)
@pytest.mark.parametrize("name", exchanges.available())
def test_a_wrong_buffer_is_a_type_error_of_one_line_on_one_rank_already(name, verb, buffer, message):
    with pytest.raises(TypeError) as raised:
        getattr(exchanges.get(name), verb)(buffer)
    assert str(raised.value) == message


@pytest.mark.parametrize("name", exchanges.available())
def test_one_rank_changes_nothing(name):
    exchange = exchanges.get(name)
    buffer = np.arange(5.0)
    exchange.allreduce(buffer)
    exchange.reduce(buffer)
    exchange.gather(buffer)
    assert buffer.tolist() == [0, 1, 2, 3, 4]
    assert exchange.owned(5) == slice(0, 5)


def test_an_exchange_that_is_not_connected_says_how_to_connect_it():
    ring = type(exchanges.get("ring"))()
    message = r"^<Ring exchange> must be connected first\. Use `easyscale\.exchange\.get\(exchange, communicator\)`$"
    with pytest.raises(ValueError, match=message):
        ring.allreduce(np.zeros(3))
    with pytest.raises(ValueError, match=message):
        ring.owned(3)


def test_an_exchange_keeps_to_one_communicator(run_ranks):
    ring = type(exchanges.get("ring"))()
    own = communicator.get("local")
    assert ring.connect(own) is ring
    assert ring.connect(own) is ring
    with pytest.raises(ValueError, match="^an exchange must keep to one communicator, and <Ring exchange> has another"):
        run_ranks(1, ring.connect)
    assert ring.communicator is own


def test_a_class_of_ones_own_needs_reduce_and_gather():
    class Half(Exchange):
        def _reduce(self, buffer): ...

    with pytest.raises(TypeError, match="_gather"):
        Half()


def test_a_class_may_have_a_constructor_of_its_own():
    class Own(Exchange):
        def __init__(self, rounds):
            self.rounds = rounds

        def _reduce(self, buffer): ...
        def _gather(self, buffer): ...

    assert Own.name == "Own"
    own = Own(3)
    assert exchanges.get(own) is own
    own.allreduce(np.zeros(2))


@pytest.mark.parametrize("length", range(1, 70, 3))
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_aligned_memory_starts_at_a_multiple_of_64_bytes(length, dtype):
    vector = aligned(length, dtype)
    assert vector.ctypes.data % 64 == 0
    assert vector.size == length
    assert vector.dtype == dtype
