"""Elastic jobs that lose workers, and get others in their place."""

from losses import LOSING_CHIEFS, lose

__all__ = [
    "check_callbacks_of_chiefs",
    "check_data_divided_anew",
    "check_lost_workers",
    "check_replaced_workers",
    "check_state_of_the_next",
]


def check_lost_workers(other, exchange, update):
    """Two of four are killed, one in the epoch and one behind the validation."""
    done = lose(4, "workers_that_wait_for_each_other_go_on", exchange, update, other=other)
    assert done.stdout.count("went on") == 2, done.stdout
    assert "lost rank 1; 3 workers go on. Its part of the data, 1/4 of each step, is divided among them" in done.stdout


def check_data_divided_anew(other, exchange, update, kind):
    """But for the batch under way it is what one process does with all data."""
    done = lose(4, "the_data_are_divided_anew", exchange, update, kind, other=other)
    assert done.stdout.count("went on") == 2, done.stdout
    assert done.stdout.count("is divided among them") == 2, done.stdout


def check_state_of_the_next(other, exchange):
    """The state that a lost worker has owned is taken from the next, and training is that of one process."""
    done = lose(3, "a_sharded_update_goes_on", exchange, options=["--elastic-batch", "local"], other=other)
    assert done.stdout.count("went on") == 2, done.stdout


def check_replaced_workers(other, kind):
    """Another worker comes for one that was killed, and each later epoch has every sample once."""
    done = lose(3, "every_sample_is_trained_on_again", kind, "replaced", options=["--respawn"], other=other)
    assert done.stdout.count("went on") == 3, done.stdout
    assert "has been replaced" in done.stdout, done.stdout


def check_callbacks_of_chiefs(other, folder):
    """The chief is killed in a step, and the next one in a validation: who comes then shows, writes and checkpoints."""
    done = lose(4, "chiefs_are_lost", "ring", "sharded", str(folder), script=LOSING_CHIEFS, other=other)
    assert done.stdout.count("went on") == 2, done.stdout
    assert "lost rank 0; 3 workers go on" in done.stdout, done.stdout
    assert "lost rank 1; 2 workers go on" in done.stdout, done.stdout
