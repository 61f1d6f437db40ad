"""Elastic jobs of other backends that lose workers, and get others in their place."""

import pytest
from losses import LOSING_CHIEFS, lose
from other_backends import OTHERS

PARAMS = [pytest.param(other, id=name, marks=[pytest.mark.full] * (name == "jax")) for name, other in OTHERS.items()]
pytestmark = [pytest.mark.parametrize("other", PARAMS)]


@pytest.mark.parametrize(
    ("exchange", "update"), [("tree", "replicated"), pytest.param("ring", "sharded", marks=pytest.mark.full)]
)
def test_workers_go_on_without_those_that_are_lost(other, exchange, update):
    """Two of four are killed, one in the epoch and one behind the validation."""
    done = lose(4, "workers_that_wait_for_each_other_go_on", exchange, update, other=other)
    assert done.stdout.count("went on") == 2, done.stdout
    assert "lost rank 1; 3 workers go on. Its part of the data, 1/4 of each step, is divided among them" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("exchange", "update", "kind"),
    [
        ("shared_memory", "sharded", "structures and weights"),
        pytest.param("ring", "replicated", "arrays", marks=pytest.mark.full),
    ],
)
def test_the_others_divide_the_data_of_the_lost_anew(other, exchange, update, kind):
    """But for the batch under way it is what one process does with all data."""
    done = lose(4, "the_data_are_divided_anew", exchange, update, kind, other=other)
    assert done.stdout.count("went on") == 2, done.stdout
    assert done.stdout.count("is divided among them") == 2, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("exchange", ["ring", pytest.param("shared_memory", marks=pytest.mark.full)])
def test_the_state_that_a_lost_worker_has_owned_is_taken_from_the_next(other, exchange):
    """Training is that of one process."""
    done = lose(3, "a_sharded_update_goes_on", exchange, options=["--elastic-batch", "local"], other=other)
    assert done.stdout.count("went on") == 2, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("kind", ["arrays", pytest.param("PyDataset", marks=pytest.mark.full)])
def test_workers_that_are_killed_are_replaced(other, kind):
    """Each later epoch has every sample once."""
    done = lose(3, "every_sample_is_trained_on_again", kind, "replaced", options=["--respawn"], other=other)
    assert done.stdout.count("went on") == 3, done.stdout
    assert "has been replaced" in done.stdout, done.stdout


@pytest.mark.full
def test_the_next_worker_is_the_chief_when_it_is_lost(other, tmp_path):
    """The chief is killed in a step, and the next one in a validation: who comes then shows, writes and checkpoints."""
    done = lose(4, "chiefs_are_lost", "ring", "sharded", str(tmp_path), script=LOSING_CHIEFS, other=other)
    assert done.stdout.count("went on") == 2, done.stdout
    assert "lost rank 0; 3 workers go on" in done.stdout, done.stdout
    assert "lost rank 1; 2 workers go on" in done.stdout, done.stdout
