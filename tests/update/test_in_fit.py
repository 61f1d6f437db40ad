"""Which update is at work, from the begin to the end of a `fit()`."""

import keras
import numpy as np
import pytest

from easyscale.errors import EasyScaleError, EasyScaleWarning
from easyscale.replication.connecting import connect
from easyscale.update.asked import get
from easyscale.update.in_fit import UpdateInFit


def _trained():
    """An optimizer after one step of a gradient of ones, and its variable."""
    optimizer, variable = keras.optimizers.SGD(0.5, momentum=0.9), keras.Variable(np.zeros(3, "float32"))
    optimizer.apply([keras.ops.ones(3)], [variable])
    return optimizer, variable


def _updates(optimizer, asked=None, exchange="ring"):
    replication = connect(exchange, None, asked, None, "local", False)
    return UpdateInFit(get(asked), optimizer, lambda: replication)


def _momentum(optimizer):
    return optimizer.variables[-1].numpy()


@pytest.mark.parametrize("asked", [None, "replicated"])
def test_the_state_is_the_optimizers_again_after_a_fit(asked):
    optimizer, variable = _trained()
    updates, before = _updates(optimizer, asked), _momentum(optimizer)
    assert not updates.now.active
    updates.begin([variable])
    assert updates.now.active
    assert updates.now.divides_state == (asked is None)
    updates.end(complete=True)
    assert not updates.now.active
    np.testing.assert_allclose(_momentum(optimizer), before)
    np.testing.assert_allclose(before, [-0.5] * 3)


def test_state_that_is_lost_starts_anew_with_a_warning():
    optimizer, variable = _trained()
    updates = _updates(optimizer)
    updates.begin([variable])
    updates.end(complete=False)
    with pytest.warns(EasyScaleWarning, match="starts anew"):
        updates.begin([variable])
    updates.end(complete=True)
    np.testing.assert_allclose(_momentum(optimizer), [0.0] * 3)


def test_a_checkpoint_of_another_optimizer_is_refused():
    optimizer, _ = _trained()
    with pytest.raises(EasyScaleError, match="Received: 1 variables in it, 3 of 'sgd"):
        _updates(optimizer).load([np.zeros(3)])


def test_an_update_that_is_not_at_servers_is_not_served():
    optimizer, variable = _trained()
    updates = _updates(optimizer)
    updates.begin([variable])
    assert updates.served is None
    updates.end(complete=True)


@pytest.mark.parametrize("exchange, is_synchronous", [("parameter_server", True), ("parameter_server:async", False)])
def test_it_is_known_before_a_fit_whether_workers_agree_in_each_step(exchange, is_synchronous):
    optimizer, _ = _trained()
    assert _updates(optimizer, exchange=exchange).is_synchronous == is_synchronous


def test_servers_wait_for_the_devices_of_one_process():
    optimizer, variable = _trained()
    with pytest.raises(ValueError, match="the devices of one process step together.*Use 'parameter_server'"):
        _updates(optimizer, exchange="parameter_server:async").begin([variable])
