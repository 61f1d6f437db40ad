"""Workers that step alone between rounds, on real processes; and what is refused before training."""

from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from launches import over_ranks

import easyscale
from easyscale.callbacks import Distribute
from easyscale.replication.connecting import connect
from easyscale.update import DiLoCo, Gossip, LocalSGD, choosing, get
from easyscale.update.states_of_workers import StatesOfWorkers

SGD = keras.optimizers.SGD


@over_ranks(Path(__file__).with_name("local_on_ranks.py"), sizes=[3], limit=600)
def test_workers_step_alone_between_rounds(check):
    check()


@over_ranks(Path(__file__).with_name("fragments_on_ranks.py"), sizes=[2], full=[3], limit=600)
def test_rounds_are_of_a_part_of_the_weights_or_go_on_beside(check):
    check()


@over_ranks(Path(__file__).with_name("gossip_on_ranks.py"), sizes=[2], full=[3, 4], limit=600)
def test_workers_mix_their_weights_in_pairs(check):
    check()


def _used():
    optimizer = SGD(0.7)
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).compile(optimizer, "mse")
    optimizer.build([keras.Variable(np.zeros(1, "float32"))])
    return optimizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSGD(every=0), "`every` must be an integer of 1 or more. Received: every=0. Use such as 16"),
        (lambda: LocalSGD(every=1.5), "`every` must be an integer of 1 or more. Received: every=1.5"),
        (lambda: Gossip(every=0), "`every` must be an integer of 1 or more. Received: every=0"),
        (lambda: DiLoCo(every="100"), "`every` must be an integer of 1 or more. Received: every='100'"),
        (lambda: DiLoCo(every=True), "`every` must be an integer of 1 or more. Received: every=True"),
        (lambda: LocalSGD(start_step=-1), "`start_step` must be an integer of 0 or more. Received: start_step=-1"),
        (
            lambda: DiLoCo(fragments=0),
            "`fragments` must be an integer of 1 or more .* Received: fragments=0, every=100",
        ),
        (lambda: DiLoCo(every=10, fragments=4), "of which `every` is a multiple. Received: fragments=4, every=10"),
        (
            lambda: DiLoCo(every=8, fragments=2, overlap=4),
            "`overlap` must be an integer from 0 to 3, as rounds are 4 steps apart. Received: overlap=4, every=8",
        ),
        (lambda: DiLoCo(overlap=-1), "`overlap` must be an integer from 0 to 99, .* Received: overlap=-1"),
        (lambda: DiLoCo(overlap=1, mixing=1.5), "`mixing` must be a number from 0 to 1. Received: mixing=1.5"),
        (lambda: DiLoCo(outer_optimizer=_used()), "Received: one that has been used already, as by a model"),
        (lambda: DiLoCo(outer_optimizer=easyscale.DistributedOptimizer("sgd")), "Received: a DistributedOptimizer"),
        (lambda: DiLoCo(outer_optimizer=SGD(gradient_accumulation_steps=2)), "Received: one that accumulates"),
        (lambda: DiLoCo(outer_optimizer=SGD(use_ema=True)), "Received: one that keeps moving averages"),
        (lambda: DiLoCo(outer_optimizer="sdg"), "`outer_optimizer` must be one of .* Did you mean 'sgd'"),
        (lambda: Distribute(update="local_sdg"), "`update` must be one of .* Did you mean 'local_sgd'"),
        (lambda: Distribute(update=16), "`update` must be one of .* Received: update=16"),
        (lambda: Distribute(update="diloco", replication="in_graph"), "the devices of one process step together"),
        (
            lambda: Distribute(update="diloco", model_parallel=easyscale.parallel.Pipeline(stages=2)),
            "the stages of a pipeline step together. Received: update='diloco' and `model_parallel`",
        ),
        (
            lambda: Distribute(update=LocalSGD(), model_parallel=easyscale.parallel.Split({"dense": "columns"})),
            r"slices of layers that are split. Received: update=LocalSGD\(every=16, start_step=0\)",
        ),
        (
            lambda: easyscale.DistributedOptimizer(SGD(gradient_accumulation_steps=2), update="local_sgd"),
            "`update='local_sgd'` needs an optimizer .* Received: SGD; it sums gradients up over steps",
        ),
        (
            lambda: easyscale.DistributedOptimizer(SGD(use_ema=True), update="diloco"),
            "`update='diloco'` needs an optimizer .* Received: SGD; it keeps moving averages of weights",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_an_outer_optimizer_is_one_of_keras():
    with pytest.raises(TypeError, match="`outer_optimizer` must be an optimizer of Keras.*Received: 0.7"):
        DiLoCo(outer_optimizer=0.7)


def test_a_model_is_not_compiled_with_the_outer_optimizer():
    outer = SGD(0.7)
    with pytest.raises(ValueError, match="Received: SGD; it is the outer optimizer as well"):
        easyscale.DistributedOptimizer(outer, update=DiLoCo(outer_optimizer=outer))


def test_workers_do_not_step_alone_beside_servers_that_do_not_wait(monkeypatch):
    gradients = connect("parameter_server:async", None, None, None, "local", False).gradients
    monkeypatch.setattr(gradients.communicator, "size", 2)
    with pytest.raises(ValueError, match=r"must be 'sharded' or `None` .*Received: update='local_sgd'"):
        choosing.choose(get("local_sgd"), SGD(), [], gradients)


@pytest.mark.parametrize(
    ("servers", "is_elastic", "received"), [(1, False, "a job with servers"), (0, True, "an elastic job")]
)
def test_a_job_in_which_workers_cannot_step_alone_is_refused(servers, is_elastic, received):
    membership = SimpleNamespace(is_elastic=is_elastic)
    workers = SimpleNamespace(communicator=SimpleNamespace(servers=servers, membership=membership))
    with pytest.raises(ValueError, match=f"Received: update='local_sgd' and {received}. Use `update='replicated'`"):
        LocalSGD()(SGD(), [], lambda: workers)


@pytest.mark.parametrize(
    "update",
    [
        "local_sgd",
        LocalSGD(every=4),
        Gossip(every=3),
        DiLoCo(every=7, outer_optimizer=SGD(0.5), start_step=3),
        DiLoCo(every=8, fragments=2, overlap=3, mixing=0.25),
    ],
)
def test_a_file_says_which_update_it_was(update):
    optimizer = easyscale.DistributedOptimizer("adam", update=update)
    again = easyscale.DistributedOptimizer.from_config(optimizer.get_config())
    assert again.update == update
    assert repr(get(again.update)) == repr(get(update))


def test_updates_are_told_apart_by_their_arguments():
    assert LocalSGD(every=4) == LocalSGD(every=4) != LocalSGD(every=5) != DiLoCo(every=5)
    assert DiLoCo(outer_optimizer=SGD(0.7)) != DiLoCo(outer_optimizer=SGD(0.6))
    assert get(LocalSGD) == get("local_sgd") == LocalSGD()
    assert repr(DiLoCo(outer_optimizer=SGD(0.5))).startswith("DiLoCo(every=100, outer_optimizer=SGD(learning_rate=0.5")


def test_on_another_number_of_workers_a_state_is_the_mean_and_a_count_the_largest():
    optimizer, variable = SGD(0.5, momentum=0.9), keras.Variable(np.zeros(2, "float32"))
    optimizer.build([variable])
    states = StatesOfWorkers(optimizer, SimpleNamespace(communicator=SimpleNamespace(size=3, rank=1)))
    count, rate, velocity = (np.array(variable) for variable in optimizer.variables)
    rows = [np.stack([count + 3, count + 4]), np.stack([rate, rate]), np.stack([velocity + 1, velocity + 2])]
    states.load(rows)
    assert int(optimizer.iterations) == 4
    np.testing.assert_array_equal(optimizer.variables[-1], [1.5, 1.5])
    states.load([np.stack([row[0], row[1], row[0]]) for row in rows])
    np.testing.assert_array_equal(optimizer.variables[-1], [2.0, 2.0])  # its own
