import ml_dtypes
import numpy as np

from easyscale.snapshot_memory import SnapshotMemory


def test_the_same_arrays_are_in_the_same_memory_again():
    memory = SnapshotMemory()
    arrays = [np.arange(3.0), np.ones((2, 2), ml_dtypes.bfloat16), np.array(7), np.zeros(0)]
    first = [memory.copy(one) for one in arrays]
    assert all((copy == one).all() and copy is not one for copy, one in zip(first, arrays, strict=True))
    memory.begin()
    second = [memory.copy(one + one) for one in arrays]
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert second[0].tolist() == [0.0, 2.0, 4.0] and second[2] == 14


def test_an_array_of_another_shape_or_type_gets_other_memory():
    memory = SnapshotMemory()
    first = memory.empty(3, np.float32)
    memory.begin()
    assert memory.empty((3,), np.float64).dtype == np.float64
    memory.begin()
    assert memory.empty((4,), np.float64).shape == (4,) and first.shape == (3,)
