"""Which update a `fit()` uses where nobody has said it."""

import keras
import numpy as np
import pytest

from easyscale import communicator, compression, exchange
from easyscale.exchange.compressed import Compressed
from easyscale.replication.connecting import connect
from easyscale.update import asked as updates
from easyscale.update import choosing
from easyscale.update.replicated import ReplicatedUpdate
from easyscale.update.sharded import ShardedUpdate


def _gradients(asked=None):
    return connect("ring", None, asked, None, "local", False).gradients


def _chosen(asked, optimizer, count, gradients=None):
    variables = [keras.Variable(np.zeros(count // 2, "float32")) for _ in range(2)]
    return choosing.choose(updates.get(asked), optimizer, variables, gradients or _gradients(asked))


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch):
    monkeypatch.setattr(choosing, "SHARDED_FROM", 4000)  # in tests it is 0, see startup/sitecustomize.py


@pytest.mark.parametrize(
    ("asked", "count", "chosen"),
    [
        (None, 998, ReplicatedUpdate),
        (None, 1000, ShardedUpdate),
        ("sharded", 998, ShardedUpdate),
        ("replicated", 1000, ReplicatedUpdate),
    ],
)
def test_the_state_of_a_small_model_is_not_worth_to_be_divided(asked, count, chosen):
    assert _chosen(asked, keras.optimizers.Adam(), count) is chosen


def test_servers_own_small_weights_too(monkeypatch):
    gradients = _gradients()
    monkeypatch.setattr(gradients.communicator, "servers", 1)
    assert _chosen(None, keras.optimizers.Adam(), 2, gradients) is ShardedUpdate


def test_what_cannot_be_divided_is_not():
    assert _chosen(None, keras.optimizers.Muon(), 10_000) is ReplicatedUpdate


def test_weights_do_not_travel_where_they_would_be_rounded():
    ring = Compressed(exchange.get("ring", communicator.get("local")), compression.available()["fp16"]())
    gradients = connect(ring, None, None, None, "local", False).gradients
    assert _chosen(None, keras.optimizers.Adam(), 10_000, gradients) is ReplicatedUpdate
    assert _chosen("replicated", keras.optimizers.Adam(), 10_000, gradients) is ReplicatedUpdate
    with pytest.raises(ValueError, match="does not round them. Received: update='sharded', exchange='ring fp16'"):
        _chosen("sharded", keras.optimizers.Adam(), 10_000, gradients)
