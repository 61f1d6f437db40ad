"""Servers and workers as threads, with plain SGD on vectors: what is applied, sent, counted."""

import collections
import time

import numpy as np
import pytest

from easyscale import communicator
from easyscale.exchange import ParameterServer
from easyscale.serving import Client, Server, rule_of

LENGTH = 12
RATE = 0.5


def _part(length, number, count):
    return slice(length * number // count, length * (number + 1) // count)


def serve(workers, servers, work, exchange=None, length=LENGTH):
    """Run `work(client, weights, step)` on workers; return what it returned, and each server with its weights.

    `step(gradient)` is a step of the client with that gradient everywhere, after which `weights` has come.
    """
    exchange = exchange or ParameterServer("async")

    def on_rank(comm):
        requests, replies = comm.duplicate(), comm.duplicate()
        owners = [(workers + number, [_part(length, number, servers)]) for number in range(servers)]
        if comm.is_server:
            own = _part(length, comm.rank - workers, servers)
            weights = np.zeros(own.stop - own.start)

            def update(gradients, rate, flags):
                assert flags is None or flags.tolist() == [1, 0]
                assert rate in (None, RATE)  # none before the chief's first step
                weights[:] -= RATE * gradients[0]

            server = Server(
                requests,
                replies,
                rule_of(exchange, workers),
                [(weights.size, weights.dtype)],
                update,
                lambda: [weights.copy()],
                exchange.delay_compensation,
            )
            server.serve()
            return server, weights, comm.sent.bytes
        client = Client(requests, replies, owners, exchange.push_every, exchange.pull_every)
        weights = np.zeros(length)

        def step(gradient, weight=1.0, flags=None):
            return client.step([np.full(length, float(gradient))], [weights], weight, RATE, flags)

        result = work(comm.rank, client, weights, step)
        client.end_epoch(stop=False)
        return result

    results = communicator.run_ranks(workers + servers, on_rank, servers=servers, timeout=30)
    return results[:workers], results[workers:]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_one_worker_alone_makes_the_steps_of_sgd(servers):
    def work(rank, client, weights, step):
        for gradient in (1, 2, 4):
            step(gradient)
        return weights

    (weights,), ends = serve(1, servers, work)
    np.testing.assert_array_equal(weights, np.full(LENGTH, -RATE * 7))
    np.testing.assert_array_equal(np.concatenate([own for _, own, _ in ends]), weights)


@pytest.mark.parametrize("workers, servers", [(2, 1), (4, 2)])
@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_every_gradient_is_applied_once(workers, servers, mode):
    def work(rank, client, weights, step):
        for number in range(20):
            step(10.0**rank)
            time.sleep(0.0005 * rank * (number % 3))

    _, ends = serve(workers, servers, work, ParameterServer(mode))
    total = -RATE * 20 * sum(10.0**rank for rank in range(workers))
    for server, weights, _ in ends:
        np.testing.assert_allclose(weights, total, rtol=1e-12)
        counted = server.rule.staleness
        assert (counted.pushed, counted.applied, counted.dropped) == (20 * workers, 20 * workers, 0)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_worker_sends_its_gradients_and_is_sent_the_weights(servers):
    length, steps, sent = 1200, 5, {}

    def work(rank, client, weights, step):
        for _ in range(steps):
            step(1)
        sent[rank] = client._requests.sent.bytes

    _, ends = serve(2, servers, work, length=length)
    overhead = 48 * servers * steps  # the requests
    assert sent == dict.fromkeys(range(2), steps * 8 * length + overhead)
    by_server = [nbytes for _, _, nbytes in ends]
    assert by_server == [2 * steps * (8 * length // servers + 16)] * servers


def test_nobody_waits_for_a_slow_worker():
    progress = collections.Counter()

    def work(rank, client, weights, step):
        if rank == 0:
            while progress[1] < 50:  # it makes its first step when the other has made 50
                time.sleep(0.001)
            step(1)
        else:
            for _ in range(50):
                step(1)
                progress[rank] += 1

    _, ((server, weights, _),) = serve(2, 1, work)
    np.testing.assert_array_equal(weights, np.full(LENGTH, -RATE * 51))
    assert dict(server.rule.staleness.counts) == {0: 50, 50: 1}


@pytest.mark.parametrize("bound", [1, 3])
@pytest.mark.parametrize("servers", [1, 2])
def test_nobody_is_further_ahead_than_the_bound(bound, servers):
    progress, ahead = collections.Counter(), []

    def work(rank, client, weights, step):
        for _ in range(15):
            if rank == 0:
                time.sleep(0.005)
            ahead.append(progress[rank] - min(progress[other] for other in range(3)))
            step(1)
            progress[rank] += 1

    _, ends = serve(3, servers, work, ParameterServer("bounded", staleness=bound))
    assert max(ahead) <= bound
    for server, weights, _ in ends:
        np.testing.assert_array_equal(weights, np.full(weights.size, -RATE * 45))
        assert server.rule.staleness.largest <= bound


def test_a_step_does_without_the_late():
    """Of 3 workers the last comes only when the others have made their 10 steps: it skips what it has missed."""
    progress = collections.Counter()

    def work(rank, client, weights, step):
        if rank == 2:
            while progress[0] + progress[1] < 20:
                time.sleep(0.001)
        while client.steps < 10:
            step(rank + 1, weight=1 + rank)
            progress[rank] += 1
        return progress[rank], weights.copy()

    results, ((server, weights, _),) = serve(3, 1, work, ParameterServer(backup_workers=1))
    assert [count for count, _ in results] == [10, 10, 1]
    mean = (1 * 1 + 2 * 2) / 3  # weighted by samples
    for _, weights in results:
        np.testing.assert_allclose(weights, -RATE * 10 * mean, rtol=1e-12)
    counted = server.rule.staleness
    assert (counted.pushed, counted.applied, counted.dropped) == (21, 20, 1)


def test_gradients_are_pushed_in_sums_and_what_is_left_at_the_end():
    def work(rank, client, weights, step):
        return [step(gradient) for gradient in (1, 2, 4, 8, 16)]

    (pulled,), ((server, weights, _),) = serve(1, 1, work, ParameterServer("async", push_every=2))
    assert pulled == [True] * 5
    assert server.rule.staleness.pushed == 3  # 1 + 2, 4 + 8, and 16 at the end
    np.testing.assert_array_equal(weights, np.full(LENGTH, -RATE * 31))


def test_weights_come_only_when_it_is_time():
    def work(rank, client, weights, step):
        return [(step(1), weights[0]) for _ in range(4)]

    (came,), _ = serve(1, 1, work, ParameterServer("async", pull_every=2))
    assert came == [(False, 0.0), (True, -1.0), (False, -1.0), (True, -2.0)]


def test_delay_compensation_by_hand():
    turn = collections.Counter()

    def work(rank, client, weights, step):
        if rank == 1:
            while not turn["first"]:
                time.sleep(0.001)
        step(2)
        turn["first"] += 1

    _, ((_, weights, _),) = serve(2, 1, work, ParameterServer("async", delay_compensation=0.25))
    # Worker 0's gradient is applied as it is: w = -1. Worker 1's was made from w = 0: 2 + 0.25 * 2 * 2 * (-1 - 0) = 1.
    np.testing.assert_array_equal(weights, np.full(LENGTH, -1.5))


def test_which_variables_have_a_gradient_is_said_of_a_sum_as_well():
    def work(rank, client, weights, step):
        for flags in ([1, 0], [0, 0]):
            step(1, flags=np.array(flags, np.uint8))

    _, ((_, weights, _),) = serve(1, 1, work, ParameterServer("async", push_every=2))
    np.testing.assert_array_equal(weights, np.full(LENGTH, -RATE * 2))


def test_that_training_stops_reaches_all_workers():
    def work(rank, client, weights, step):
        if rank == 0:
            step(1)
            client.end_epoch(stop=True)
            client._owners = []  # the end has been said
            return None
        for number in range(10_000):
            step(1)
            if client.stop:
                return number
            time.sleep(0.0005)

    (_, steps), ((server, _, _),) = serve(2, 1, work)
    assert steps < 9_999
    assert server.stop
