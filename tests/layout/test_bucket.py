"""Where gradients stand in the flat vectors, and how they come in and out."""

import ml_dtypes
import numpy as np
import pytest

from easyscale.exchange.vectors import aligned
from easyscale.layout.bucket import ALIGNMENT, Slot, lend, plan

DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in ["float16", "bfloat16", "float32", "float64"]}
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
SHAPES = [(3,), (), (2, 3), (0,), (4, 0, 2), (16,), (17,), (5, 1, 7)]


def _gradients(shapes, dtype, start=1):
    return [(np.arange(np.prod(shape, dtype=int)) + start).reshape(shape).astype(dtype) for shape in shapes]


def test_slots_by_hand():
    (bucket,) = plan([((3,), "float32"), ((2, 8), "float32"), ((), "float32"), ((17,), "float32")])
    assert bucket.dtype == np.float32
    # A slot starts at a multiple of 64 bytes, which is 16 elements.
    assert bucket.slots == [
        Slot(0, (3,), 0, 3),
        Slot(1, (2, 8), 16, 32),
        Slot(2, (), 32, 33),
        Slot(3, (17,), 48, 65),
    ]
    assert bucket.length == 80


@every_dtype
def test_slots_are_aligned_and_apart(dtype):
    (bucket,) = plan([(shape, dtype) for shape in SHAPES])
    assert [slot.index for slot in bucket.slots] == list(range(len(SHAPES)))
    end = 0
    for slot, shape in zip(bucket.slots, SHAPES, strict=True):
        assert slot.start * dtype.itemsize % ALIGNMENT == 0
        assert slot.start >= end
        assert slot.stop - slot.start == np.prod(shape, dtype=int)
        end = max(slot.stop, slot.start + 1)  # an empty gradient has a place of its own, too
    assert bucket.length >= end
    assert bucket.length * dtype.itemsize % ALIGNMENT == 0


def test_each_dtype_has_its_bucket_and_indices_keep_their_order():
    specs = [((2,), "float32"), ((3,), "float16"), ((4,), "float32"), ((5,), DTYPES["bfloat16"]), ((6,), "float16")]
    buckets = plan(specs)
    assert [(bucket.dtype.name, [slot.index for slot in bucket.slots]) for bucket in buckets] == [
        ("float32", [0, 2]),
        ("float16", [1, 4]),
        ("bfloat16", [3]),
    ]


@pytest.mark.parametrize(
    "bucket_bytes, indices",
    [
        (None, [[0, 1, 2, 3, 4]]),
        (1, [[0], [1], [2], [3], [4]]),
        (64, [[0], [1], [2], [3], [4]]),
        (65, [[0, 1], [2, 3], [4]]),
        (128, [[0, 1], [2, 3], [4]]),
        (10**6, [[0, 1, 2, 3, 4]]),
    ],
)
def test_a_bucket_is_closed_when_it_holds_bucket_bytes(bucket_bytes, indices):
    buckets = plan([((16,), "float32")] * 5, bucket_bytes)  # 64 bytes each
    assert [[slot.index for slot in bucket.slots] for bucket in buckets] == indices
    assert all(bucket.slots[0].start == 0 for bucket in buckets)


def test_dtypes_are_split_each_by_itself():
    specs = [((32,), "float32"), ((32,), "float16"), ((32,), "float32"), ((32,), "float16"), ((32,), "float16")]
    assert [(bucket.dtype.name, [slot.index for slot in bucket.slots]) for bucket in plan(specs, 128)] == [
        ("float32", [0]),
        ("float16", [1, 3]),
        ("float32", [2]),
        ("float16", [4]),
    ]


def test_a_gradient_longer_than_a_bucket_is_not_cut():
    first, second = plan([((1000,), "float32"), ((1,), "float32")], 64)
    assert first.slots == [Slot(0, (1000,), 0, 1000)]
    assert second.slots == [Slot(1, (1,), 0, 1)]


def test_no_gradients_make_no_bucket():
    assert plan([]) == []


@every_dtype
def test_what_is_packed_comes_out_again_without_a_copy(dtype):
    gradients = _gradients(SHAPES, dtype)
    (bucket,) = plan([(gradient.shape, dtype) for gradient in gradients])
    vector = aligned(bucket.length, dtype)
    bucket.pack(dict(enumerate(gradients)), vector, 1.0)
    unpacked = bucket.unpack(vector)
    assert list(unpacked) == list(range(len(SHAPES)))
    for index, gradient in enumerate(gradients):
        np.testing.assert_array_equal(unpacked[index], gradient)
        assert unpacked[index].shape == gradient.shape
        assert unpacked[index].dtype == dtype
        if gradient.size:
            assert np.shares_memory(unpacked[index], vector)
            assert not np.shares_memory(unpacked[index], gradient)
            assert unpacked[index].ctypes.data % ALIGNMENT == 0


def test_gradients_go_to_the_bucket_that_has_their_index():
    specs = [((2,), "float32"), ((2,), "float64"), ((2,), "float32")]
    gradients = [np.full(shape, index + 1, dtype) for index, (shape, dtype) in enumerate(specs)]
    unpacked = {}
    for bucket in plan(specs):
        vector = aligned(bucket.length, bucket.dtype)
        bucket.pack(dict(enumerate(gradients)), vector, 1.0)
        unpacked.update(bucket.unpack(vector))
    assert {index: (array.dtype.name, array.tolist()) for index, array in unpacked.items()} == {
        0: ("float32", [1, 1]),
        1: ("float64", [2, 2]),
        2: ("float32", [3, 3]),
    }


@every_dtype
def test_gradients_are_multiplied_by_the_weight(dtype):
    gradients = _gradients([(3,), (2, 2)], dtype, start=4)
    (bucket,) = plan([(gradient.shape, dtype) for gradient in gradients])
    vector = aligned(bucket.length, dtype)
    bucket.pack(dict(enumerate(gradients)), vector, 0.25)
    unpacked = bucket.unpack(vector)
    assert unpacked[0].astype(float).tolist() == [1, 1.25, 1.5]
    assert unpacked[1].astype(float).tolist() == [[1, 1.25], [1.5, 1.75]]
    assert gradients[0].astype(float).tolist() == [4, 5, 6]


@every_dtype
def test_weight_0_makes_zeros_of_anything(dtype):
    gradients = [np.array([np.nan, np.inf, -np.inf, 3]).astype(dtype)]
    (bucket,) = plan([((4,), dtype)])
    vector = aligned(bucket.length, dtype)
    vector[:] = 7  # of an earlier step
    bucket.pack(dict(enumerate(gradients)), vector, 0.0)
    assert bucket.unpack(vector)[0].astype(float).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "dtype, expected, in_half",
    [
        # Between 1 and 2 a float16 is a multiple of 1/1024, and the nearest to 5/3 is 1707/1024. But 1/3 is 0.33325
        # in float16, five times that 1706.25/1024. A bfloat16 is a multiple of 1/128, 1/3 is 0.33398.
        ("float16", 1707 / 1024, 1706 / 1024),
        ("bfloat16", 213 / 128, 214 / 128),
    ],
)
def test_half_types_are_multiplied_in_float32(dtype, expected, in_half):
    dtype = DTYPES[dtype]
    five, third = dtype.type(5), dtype.type(1 / 3)
    assert five * third == in_half
    (bucket,) = plan([((1,), dtype)])
    vector = aligned(bucket.length, dtype)
    bucket.pack({0: np.full(1, five)}, vector, 1 / 3)
    assert bucket.unpack(vector)[0][0] == expected


def test_pack_takes_gradients_that_are_not_contiguous():
    gradient = np.arange(12, dtype="float32").reshape(3, 4).T
    (bucket,) = plan([((4, 3), "float32")])
    vector = aligned(bucket.length, "float32")
    bucket.pack({0: gradient}, vector, 2.0)
    np.testing.assert_array_equal(bucket.unpack(vector)[0], 2 * gradient)


def test_vectors_of_all_buckets_are_pieces_of_one_for_each_dtype():
    specs = [((100,), "float32"), ((50,), "float64"), ((300,), "float32"), ((7,), "float32")]
    buckets = plan(specs, bucket_bytes=256)
    lent = []

    class Noting:
        def lend(self, length, dtype="float32", common=False):
            lent.append((length, np.dtype(dtype).name, common))
            return aligned(length, dtype)

    vectors = lend(buckets, Noting(), common=True)
    assert [(vector.size, vector.dtype) for vector in vectors] == [(bucket.length, bucket.dtype) for bucket in buckets]
    # Slots are rounded up to 16 elements of float32, to 8 of float64: 112 + 304 + 16, and 56.
    assert lent == [(432, "float32", True), (56, "float64", True)]
    assert all(vector.ctypes.data % ALIGNMENT == 0 for vector in vectors)
    for number, vector in enumerate(vectors):
        vector[:] = number
    assert [set(vector) for vector in vectors] == [{number} for number in range(len(vectors))]
