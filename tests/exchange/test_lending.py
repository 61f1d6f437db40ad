"""Memory that comes back by itself, and not before nobody looks at it."""

import functools
import gc

import ml_dtypes
import numpy as np
import pytest

from easyscale.exchange.lending import Lending
from easyscale.exchange.vectors import aligned
from easyscale.layout.bucket import ALIGNMENT

DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in ["float32", "float64", "float16", "bfloat16"]}


@pytest.fixture(params=DTYPES.values(), ids=DTYPES)
def lending(request):
    """A `Lending` of vectors of 100 elements; `lending.made` lists their addresses."""
    made = []

    def allocate(length, dtype):
        vector = aligned(length, dtype)
        made.append(vector.ctypes.data)
        return vector

    lending = Lending()
    lending.lend = functools.partial(lending.lend, 100, request.param, allocate)
    lending.made, lending.dtype = made, request.param
    return lending


def _address(vector):
    return vector.ctypes.data


def test_what_is_lent_is_what_was_allocated(lending):
    vector = lending.lend()
    assert (vector.dtype, vector.shape) == (lending.dtype, (100,))
    assert [_address(vector)] == lending.made
    assert _address(vector) % ALIGNMENT == 0
    assert vector.flags.writeable


def test_memory_is_lent_again_when_it_is_back(lending):
    for _ in range(5):
        vector = lending.lend()
        vector[:] = 1
        del vector
    assert len(lending.made) == 1


def test_memory_that_is_lent_is_not_lent_again(lending):
    first, second = lending.lend(), lending.lend()
    assert not np.shares_memory(first, second)
    assert lending.made == [_address(first), _address(second)]


@pytest.mark.parametrize(
    "view",
    [
        lambda vector: vector[10:20],
        lambda vector: vector[10:20].reshape(2, 5),
        lambda vector: vector.reshape(10, 10).T[1:],
        lambda vector: vector.view(np.uint8)[3:],
        lambda vector: memoryview(vector.view(np.uint8)),
        lambda vector: np.asarray(vector[:5])[None],
        lambda vector: np.frombuffer(vector.view(np.uint8), np.uint8),
    ],
    ids=["slice", "reshaped", "transposed", "bytes", "memoryview", "asarray", "frombuffer"],
)
def test_memory_is_not_lent_again_while_a_view_lives(lending, view):
    vector = lending.lend()
    vector[:] = 3
    kept = view(vector)
    before = np.array(kept).tobytes()
    del vector
    gc.collect()
    other = lending.lend()
    other[:] = 5
    assert len(lending.made) == 2
    assert np.array(kept).tobytes() == before

    del kept
    gc.collect()
    again = lending.lend()
    assert _address(again) == lending.made[0]
    assert len(lending.made) == 2


def test_the_last_of_several_views_gives_the_memory_back(lending):
    vector = lending.lend()
    views = [vector[i : i + 10] for i in range(0, 100, 10)]
    del vector
    while views:
        assert len(lending.made) == 1
        lent = lending.lend()
        assert _address(lent) != lending.made[0]
        del lent
        lending.made[1:] = []
        views.pop()
    assert _address(lending.lend()) == lending.made[0]


def test_as_many_are_made_as_are_out_at_once(lending):
    for _ in range(3):
        out = [lending.lend() for _ in range(4)]
        assert len({_address(vector) for vector in out}) == 4
        del out
    assert len(lending.made) == 4


def test_tensorflow_takes_it_without_a_copy_and_gives_it_back():
    import tensorflow as tf

    made = []

    def allocate(length, dtype):
        made.append(aligned(length, dtype))
        return made[-1]

    lending = Lending()
    lending.lend = functools.partial(lending.lend, 1024, DTYPES["float32"], allocate)

    @tf.function
    def step(number):
        def fill(number):
            vector = lending.lend()
            vector[:] = number
            return vector

        return tf.numpy_function(fill, [number], tf.float32)

    kept = step(1.0)
    assert kept.numpy().tolist() == [1.0] * 1024
    other = step(2.0)  # the first is still in use
    assert kept.numpy()[0] == 1.0
    assert other.numpy()[0] == 2.0
    assert len(made) == 2
    del kept, other
    for number in range(10):
        assert step(float(number)).numpy()[0] == number
    assert len(made) <= 3  # one may still be on its way back when the next is lent


def test_vectors_of_nearly_one_length_use_the_same_memory():
    made = []

    def allocate(length, dtype):
        made.append((length, dtype.name))
        return aligned(length, dtype)

    lending = Lending()
    for length, dtype in ((1000, "float32"), (1001, "float32"), (1000, "float64"), (2000, "float32"), (999, "float32")):
        vector = lending.lend(length, DTYPES[dtype], allocate)
        assert (vector.size, vector.dtype) == (length, dtype)
        del vector
        gc.collect()
    assert made == [(1024, "float32"), (1024, "float64"), (2048, "float32")]
