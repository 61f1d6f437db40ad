"""Servers that own everything, on threads: what is summed, what is sent, and what is refused."""

import numpy as np
import pytest

from easyscale import communicator
from easyscale import exchange as exchanges
from easyscale.exchange import ParameterServer, parameter_server

CASES = [(1, 1), (2, 1), (3, 2), (4, 1), (4, 2), (4, 4)]  # workers, servers

every_case = pytest.mark.parametrize("workers, servers", CASES)


def _on_ranks(workers, servers, function, **options):
    return communicator.run_ranks(workers + servers, function, servers=servers, **options)


@every_case
@pytest.mark.parametrize("length", [0, 1, 7, 1000, 300_001])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_servers_own_everything_and_sum_the_workers(workers, servers, length, dtype):
    def on_rank(comm):
        exchange = exchanges.get("parameter_server", comm)
        buffer = (np.arange(length) % 29 + (1000 if comm.is_server else comm.rank)).astype(dtype)
        own = exchange.owned(length)
        exchange.reduce(buffer)
        sums = buffer[own].copy()
        buffer[own] *= 2
        exchange.gather(buffer)
        return own, sums, buffer

    expected = (np.arange(length) % 29 * workers + workers * (workers - 1) // 2).astype(dtype)
    for rank, (own, sums, buffer) in enumerate(_on_ranks(workers, servers, on_rank)):
        assert (own.stop - own.start > 0) <= (rank >= workers)
        np.testing.assert_array_equal(sums, expected[own])
        np.testing.assert_array_equal(buffer, expected * 2)


@pytest.mark.parametrize("nodes", [[1, 1], [1, 1, 1], [2, 1], [1, 1, 1, 1]], ids=str)
def test_without_servers_ranks_on_several_nodes_serve_their_share(nodes, monkeypatch):
    monkeypatch.setattr(parameter_server, "SEGMENT_BYTES", 64)
    size = sum(nodes)

    def on_rank(comm):
        buffer = np.arange(480.0) + comm.rank
        exchange = exchanges.get("parameter_server", comm)
        exchange.allreduce(buffer)
        return buffer, exchange.owned(480), comm.sent.bytes

    for rank, (buffer, own, sent) in enumerate(communicator.run_ranks(size, on_rank, nodes=nodes)):
        np.testing.assert_array_equal(buffer, size * np.arange(480) + size * (size - 1) / 2)
        assert own == slice(480 * rank // size, 480 * (rank + 1) // size)
        assert sent == 2 * 8 * 480 * (size - 1) // size


@every_case
def test_a_worker_sends_its_gradients_once_whatever_the_number_of_servers(workers, servers):
    def on_rank(comm):
        exchange = exchanges.get("parameter_server", comm)
        exchange.allreduce(np.ones(4800, "float32"))
        return comm.is_server, comm.sent.messages, comm.sent.bytes

    for is_server, messages, nbytes in _on_ranks(workers, servers, on_rank):
        part = 4 * 4800 // servers
        if is_server:  # to all other ranks, servers among them
            assert (messages, nbytes) == (workers + servers - 1, part * (workers + servers - 1))
        else:
            assert (messages, nbytes) == (servers, 4 * 4800)


@pytest.mark.parametrize("servers", [2, 3, 4])
def test_servers_own_parts_of_one_size(servers):
    ranges = _on_ranks(4, servers, lambda comm: exchanges.get("parameter_server", comm).owned(10_007))
    lengths = [own.stop - own.start for own in ranges[4:]]
    assert max(lengths) - min(lengths) <= 1
    assert sum(lengths) == 10_007


def test_auto_is_the_parameter_server_where_there_are_servers():
    def on_rank(comm):
        return exchanges.get("auto", comm).name, [exchange.name for exchange in exchanges.candidates(comm)]

    for name, candidates in _on_ranks(2, 1, on_rank):
        assert name == "parameter_server"
        assert candidates == ["parameter_server"]


def test_another_exchange_has_no_servers():
    with pytest.raises(ValueError, match="servers need an exchange that has some.*'ring' and 1 servers"):
        _on_ranks(2, 1, lambda comm: exchanges.get("ring", comm))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mode": "asnyc"}, "Did you mean 'async'"),
        ({"mode": "bounded", "staleness": -1}, "`staleness` must be an integer of 0 or more. Received: staleness=-1"),
        ({"mode": "bounded", "staleness": 1.5}, "`staleness` must be an integer"),
        (
            {"mode": "async", "staleness": 4},
            "`staleness` is for the mode 'bounded'. Received: mode='async', staleness=4",
        ),
        ({"staleness": 0}, "`staleness` is for the mode 'bounded'. Received: mode='sync', staleness=0"),
        ({"backup_workers": -1}, "`backup_workers` must be an integer of 0 or more"),
        ({"mode": "async", "push_every": 0}, "`push_every` must be an integer of 1 or more"),
        ({"mode": "async", "delay_compensation": -0.1}, "`delay_compensation` must be a number of 0 or more"),
        ({"mode": "async", "backup_workers": 1}, "`backup_workers` is for the mode 'sync'"),
        ({"mode": "bounded", "backup_workers": 1}, "`backup_workers` is for the mode 'sync'"),
        ({"push_every": 2}, "`push_every` is for the modes 'async' and 'bounded'"),
        ({"delay_compensation": 0.5}, "`delay_compensation` is for the modes 'async' and 'bounded'"),
        ({"mode": "bounded", "staleness": 2, "pull_every": 3}, "`staleness` must be as large as"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ParameterServer(**options)


def test_options_that_an_exchange_does_not_have_are_refused():
    with pytest.raises(ValueError, match="Received: exchange='ring:async'"):
        exchanges.get("ring:async")
    with pytest.raises(ValueError, match="Did you mean 'parameter_server:bounded'"):
        exchanges.get("parameter_server:bound")


def test_as_many_backup_workers_as_workers_are_refused():
    with pytest.raises(ValueError, match="must leave one worker. Received: backup_workers=3 of 3 workers"):
        communicator.run_ranks(3, lambda comm: exchanges.get(ParameterServer(backup_workers=3), comm))


def test_names_say_the_mode():
    names = ["parameter_server", "parameter_server:async", "parameter_server:bounded"]
    assert [exchanges.get(name).name for name in names] == names
    assert [exchanges.get(name).is_synchronous for name in names] == [True, False, False]
    assert ParameterServer("bounded", staleness=0).is_synchronous  # nobody may be ahead: all step together
    assert not ParameterServer(backup_workers=1).is_synchronous
