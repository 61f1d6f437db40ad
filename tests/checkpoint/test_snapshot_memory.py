import ml_dtypes
import numpy as np

from easyscale import exchange
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.layout.shards import Shards


def test_the_same_arrays_are_in_the_same_memory_again():
    memory = SnapshotMemory()
    arrays = [np.arange(3.0), np.ones((2, 2), ml_dtypes.bfloat16), np.array(7), np.zeros(0)]
    first = [memory.copy(array) for array in arrays]
    assert all((copy == array).all() and copy is not array for copy, array in zip(first, arrays, strict=True))
    memory.begin()
    second = [memory.copy(array + array) for array in arrays]
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert second[0].tolist() == [0.0, 2.0, 4.0] and second[2] == 14


def test_an_array_of_another_shape_or_type_gets_other_memory():
    memory = SnapshotMemory()
    first = memory.empty(3, np.float32)
    memory.begin()
    assert memory.empty((3,), np.float64).dtype == np.float64
    memory.begin()
    assert memory.empty((4,), np.float64).shape == (4,) and first.shape == (3,)


def test_memory_that_is_released_is_not_used_again():
    memory = SnapshotMemory()
    first = memory.copy(np.ones(3))
    memory.release()
    memory.copy(np.zeros(3))
    np.testing.assert_array_equal(first, np.ones(3))


def test_a_rank_that_only_gives_its_part_keeps_no_memory_for_the_whole(run_ranks):
    def on_rank(comm):
        shards, memory = Shards(exchange.get("ring", comm), [((12,), np.float32)]), SnapshotMemory()
        part = np.arange(12, dtype=np.float32)[shards.parts[0]]
        whole = shards.collect(0, part, root=0, memory=memory)
        return memory._next, whole.tolist() if comm.rank == 0 else None

    assert run_ranks(3, on_rank) == [(1, list(range(12))), (0, None), (0, None)]
