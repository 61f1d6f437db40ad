"""The axes of a mesh are whole communicators: exchanges, windows, messages of their own, errors by world ranks."""

from pathlib import Path

import numpy as np
import pytest
from launches import over_ranks

from easyscale import exchange
from easyscale.errors import PeerError
from easyscale.mesh import Mesh

SHAPES = [(1, 2), (2, 1), (2, 2), (3, 2), (2, 3)]


@pytest.mark.parametrize("data, model", SHAPES)
def test_ranks_of_one_model_are_neighbours(run_ranks, data, model):
    def on_rank(comm):
        mesh = Mesh(comm, {"data": data, "model": model})
        return mesh["data"].all_gather_object(comm.rank), mesh["model"].all_gather_object(comm.rank)

    for rank, (along_data, along_model) in enumerate(run_ranks(data * model, on_rank)):
        assert along_data == list(range(rank % model, data * model, model))
        first = rank // model * model
        assert along_model == list(range(first, first + model))


def test_messages_beside_an_axis_never_meet_those_of_the_axis(run_ranks):
    def on_rank(comm):
        mesh = Mesh(comm, {"data": 2, "model": 2})
        along, beside = mesh["model"], mesh.beside("model")
        assert mesh.beside("model") is beside
        other = 1 - along.rank
        came = [np.zeros(1), np.zeros(1)]
        requests = [beside.ireceive(came[0], other), along.ireceive(came[1], other)]
        requests += [along.isend(np.full(1, 1.0), other), beside.isend(np.full(1, 2.0), other)]
        for request in requests:
            request.wait()
        return [float(one[0]) for one in came]

    assert run_ranks(4, on_rank) == [[2.0, 1.0]] * 4


@pytest.mark.parametrize("name", exchange.available())
@pytest.mark.parametrize("data, model", SHAPES)
@pytest.mark.parametrize("length", [0, 7, 100_000])
def test_each_exchange_sums_along_the_data_axis_only_while_messages_go_along_the_other(
    run_ranks, name, data, model, length
):
    def on_rank(comm):
        mesh = Mesh(comm, {"data": data, "model": model})
        along, ring = mesh["model"], exchange.get(name, mesh["data"])
        left, right = (along.rank - 1) % model, (along.rank + 1) % model
        came = np.zeros(3)
        under_way = []
        if model > 1:
            under_way = [along.ireceive(came, left), along.isend(np.full(3, float(along.rank)), right)]
        buffer = np.arange(length, dtype="float64") + comm.rank
        ring.allreduce(buffer)
        parts = np.arange(length, dtype="float64") * comm.rank
        ring.reduce(parts)
        ring.gather(parts)
        for request in under_way:
            request.wait()
        return buffer, parts, came, left

    for rank, (buffer, parts, came, left) in enumerate(run_ranks(data * model, on_rank)):
        column = range(rank % model, data * model, model)
        np.testing.assert_array_equal(buffer, data * np.arange(length) + sum(column))
        np.testing.assert_allclose(parts, np.arange(length) * sum(column), rtol=1e-12)
        if model > 1:
            np.testing.assert_array_equal(came, np.full(3, float(left)))


@pytest.mark.parametrize("name", ["hierarchical", "shared_memory"])
def test_exchanges_that_share_memory_know_the_nodes_of_an_axis(run_ranks, name):
    """Nodes of two ranks, each with one pipeline: along the data axis no two ranks share memory."""

    def on_rank(comm):
        mesh = Mesh(comm, {"data": 2, "model": 2})
        assert mesh["data"].nodes == [[0], [1]]
        assert mesh["model"].nodes == [[0, 1]]
        buffer = np.full(1000, comm.rank, "float32")
        exchange.get(name, mesh["model"]).allreduce(buffer)
        if name == "hierarchical":
            exchange.get(name, mesh["data"]).allreduce(buffer)
        return buffer[0]

    expected = [6] * 4 if name == "hierarchical" else [1, 1, 5, 5]
    assert run_ranks(4, on_rank, nodes=[2, 2]) == expected


def test_windows_belong_to_one_axis(run_ranks):
    def on_rank(comm):
        mesh = Mesh(comm, {"data": 2, "model": 2})
        sums = []
        for axis in ("data", "model", "data"):
            window = mesh[axis].allocate_shared(8)
            window.parts[mesh[axis].local_rank][:] = 1 + comm.rank
            mesh[axis].barrier()
            sums.append([int(part[0]) for part in window.parts])
        return sums

    found = run_ranks(4, on_rank)
    assert found[2] == [[1, 3], [3, 4], [1, 3]]
    assert found[1] == [[2, 4], [1, 2], [2, 4]]


def test_an_error_names_ranks_of_the_world(run_ranks):
    def on_rank(comm):
        mesh = Mesh(comm, {"data": 2, "model": 2})
        assert mesh["data"].membership.initial_ranks == [comm.rank % 2, comm.rank % 2 + 2]
        if comm.rank == 3:
            raise RuntimeError("it has failed")
        try:
            mesh["model" if comm.rank == 2 else "data"].receive(np.zeros(1), 1)
        except PeerError as error:
            said.append(str(error))
            raise

    said = []
    with pytest.raises(RuntimeError, match="it has failed"):
        run_ranks(4, on_rank)
    assert any(error.startswith("[rank 2 of 4] rank 3 failed: waits for 8 bytes from rank 3") for error in said), said


@pytest.mark.parametrize(
    "axes, message",
    [
        ({"data": 2, "model": 3}, r"which is 6, for 4 ranks\. Start 3 or 6 ranks with these, or change the axes"),
        ({"data": 4, "model": 2}, r"Received: data 4 x model 2, which is 8, for 4 ranks"),
        ({"data": 0, "model": 4}, r"positive number of ranks\. Received: axes=\{'data': 0"),
        ({}, "positive number of ranks"),
    ],
)
def test_sizes_that_do_not_fit_are_one_line(run_ranks, axes, message):
    with pytest.raises(ValueError, match=message) as raised:
        run_ranks(4, lambda comm: Mesh(comm, axes))
    assert "\n" not in str(raised.value)


def test_an_axis_that_is_not_there_is_named_with_the_nearest(run_ranks):
    with pytest.raises(ValueError, match="Did you mean 'model'"):
        run_ranks(2, lambda comm: Mesh(comm, {"data": 1, "model": 2})["modle"])


def test_servers_have_no_place_in_a_mesh(run_ranks):
    with pytest.raises(ValueError, match="1 servers. Start the job without `--servers`"):
        run_ranks(3, lambda comm: Mesh(comm, {"data": 3}), servers=1)


@over_ranks(Path(__file__).with_name("mesh_on_ranks.py"), sizes=[2], full=[4])
def test_a_mesh_of_processes(check):
    check()
