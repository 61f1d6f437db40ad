"""Exchanges whose vectors are in the memory of GPUs, which is simulated: everything but CUDA's own calls."""

import gc

import numpy as np
import pytest
from simulated_gpus import SimulatedMemory

from easyscale import exchange as exchanges
from easyscale.errors import DesyncError, EasyScaleWarning
from easyscale.exchange.between_gpus import between_gpus
from easyscale.exchange.cuda_ipc import CudaIpc
from easyscale.exchange.nccl import Nccl
from easyscale.gpus.cuda import Cuda
from easyscale.gpus.ranks import gpus_of

every_exchange = pytest.mark.parametrize("cls", [CudaIpc, Nccl], ids=["cuda_ipc", "nccl"])
every_size = pytest.mark.parametrize("size", [2, 3, 4])
every_length = pytest.mark.parametrize("length", [0, 1, 7, 1000, 100_001])


def _connected(cls, comm):
    return exchanges.get(cls(SimulatedMemory(comm.rank, shares=False)), comm)


def _values(rank, length, dtype):
    return (np.arange(length) % 29 + rank).astype(dtype)


def _sums(size, length, dtype):
    return (np.arange(length) % 29 * size + size * (size - 1) // 2).astype(dtype)


@every_exchange
@every_size
@every_length
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_vectors_of_both_memories_are_summed(run_ranks, cls, size, length, dtype):
    def on_rank(comm):
        exchange = _connected(cls, comm)
        host = _values(comm.rank, length, dtype)
        exchange.allreduce(host)
        there = exchange.for_gpus()
        lent = there.lend(length, dtype)
        lent[...] = _values(comm.rank, length, dtype)
        there.allreduce(lent)
        own = there.memory.of_host(_values(comm.rank, length, dtype))  # of no window
        there.reduce(own)
        return host, np.array(lent), own[there.owned(length)], there.owned(length)

    expected = _sums(size, length, dtype)
    for host, lent, own, part in run_ranks(size, on_rank):
        np.testing.assert_array_equal(host, expected)
        np.testing.assert_array_equal(lent, expected)
        np.testing.assert_array_equal(own, expected[part])


@every_exchange
def test_a_piece_of_a_vector_that_was_lent_is_summed_where_it_is(run_ranks, cls):
    def on_rank(comm):
        exchange = _connected(cls, comm).for_gpus()
        vector = exchange.lend(200, "float32")
        vector[...] = _values(comm.rank, 200, "float32")
        exchange.reduce(vector[50:150])
        exchange.gather(vector[50:150])
        return np.array(vector)

    for rank, vector in enumerate(run_ranks(3, on_rank)):
        own, total = _values(rank, 200, "float32"), _sums(3, 200, "float32")
        np.testing.assert_array_equal(vector, np.concatenate([own[:50], total[50:150], own[150:]]))


def test_memory_is_lent_again_when_no_rank_has_a_view_of_it(run_ranks):
    def on_rank(comm):
        exchange = _connected(CudaIpc, comm).for_gpus()
        addresses = []
        kept = None
        for step in range(4):
            vector = exchange.lend(1000, "float32")
            addresses.append(vector.ctypes.data)
            if comm.rank == 0 and step == 0:
                kept = vector[3:5]  # another rank must not be lent it while this one looks
            del vector
            gc.collect()
            comm.barrier()
        return addresses, kept is None

    for addresses, _ in run_ranks(2, on_rank):
        assert addresses[1] != addresses[0]
        assert addresses[2:] == [addresses[1]] * 2


def test_vectors_of_different_lengths_are_an_error_on_all_ranks(run_ranks):
    def on_rank(comm):
        exchange = _connected(CudaIpc, comm).for_gpus()
        with pytest.raises(DesyncError, match="the same length and dtype"):
            exchange.lend(100 + comm.rank, "float32")
        vector = exchange.lend(100, "float32")
        with pytest.raises(DesyncError, match="the same length and dtype"):
            exchange.reduce(vector[: 50 + comm.rank])

    run_ranks(2, on_rank)


def test_nccl_wants_a_gpu_for_each_rank(run_ranks):
    def on_rank(comm):
        exchange = exchanges.get(Nccl(SimulatedMemory(comm.rank, shares=True)), comm)
        with pytest.raises(ValueError, match=r"one for the ranks \[0, 1\]. Use 'cuda_ipc'"):
            exchange.for_gpus()
        return sorted(gpus_of(comm, SimulatedMemory(comm.rank, shares=False)).values())

    assert run_ranks(2, on_rank) == [[[0], [1]]] * 2


@pytest.mark.parametrize(
    "nodes, memory, expected",
    [
        ([2], {"shares": False}, "nccl"),
        ([1, 1], {"shares": False}, "nccl"),
        ([2], {"shares": True}, "cuda_ipc"),
        ([2], {"shares": False, "has_library": False}, "cuda_ipc"),
        ([1, 1], {"shares": False, "has_library": False}, "ring"),
        ([1, 1], {"shares": True}, "ring"),
    ],
)
def test_auto_takes_what_the_gpus_can_do(run_ranks, nodes, memory, expected):
    def on_rank(comm):
        # Ranks of several nodes share GPUs by name only.
        own = SimulatedMemory(comm.rank, **memory)
        usual = exchanges.get("ring", comm)
        if len(nodes) > 1 and memory.get("shares"):
            comm.host = "one"
        return between_gpus(usual, own).name

    assert run_ranks(2, on_rank, nodes=nodes) == [expected] * 2


def test_auto_takes_the_usual_where_one_rank_does_not_see_the_others_memory(run_ranks):
    def on_rank(comm):
        memory = SimulatedMemory(comm.rank, shares=True, sees=comm.rank == 0)
        return between_gpus(exchanges.get("ring", comm), memory).name

    with pytest.warns(EasyScaleWarning, match="the exchange 'ring' is used: it does not see"):
        assert run_ranks(2, on_rank) == ["ring", "ring"]


def test_cuda_ipc_stays_on_one_node(run_ranks):
    def on_rank(comm):
        with pytest.raises(ValueError, match="on one node for the exchange 'cuda_ipc'. Received: 2 nodes. Use 'nccl'"):
            _connected(CudaIpc, comm)

    run_ranks(2, on_rank, nodes=[1, 1])


@pytest.mark.skipif(Cuda().why_not() is None, reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda_ipc", "nccl"])
def test_where_no_gpu_is_they_are_not_available_and_say_why(run_ranks, name):
    assert name not in exchanges.available()
    assert name not in exchanges.with_options()

    def on_rank(comm):
        with pytest.raises(ValueError, match=f"the exchange '{name}' needs GPUs and CuPy. Received: "):
            exchanges.get(name, comm)

    run_ranks(2, on_rank)
