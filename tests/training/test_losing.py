"""An elastic training goes on without the workers that it loses."""

import sys

import pytest
from launches import run
from losses import LOSING, LOSING_CHIEFS, lose


def test_a_worker_that_servers_do_not_wait_for_is_lost_and_the_others_go_on():
    done = lose(3, "a_worker_is_lost_and_the_others_go_on", options=["--servers", "1"])
    assert done.stdout.count("went on") == 3, done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith("easyscale: ")]
    assert said[0].startswith("easyscale: rank 1 on "), said
    assert said[0].endswith("was killed by signal 9 (Killed); 2 of 3 workers are left"), said
    assert len(said) == 1, said
    lost = "EasyScale: epoch 2 lost rank 1 after 3 of its steps; 2 workers go on. The rest of its data, 1/3 of the"
    assert lost in done.stdout, done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("exchange", "update", "batch"),
    [
        pytest.param("auto", "replicated", "local", marks=pytest.mark.full),
        ("tree", "replicated", "global"),
        pytest.param("mpi", "replicated", "local", marks=pytest.mark.full),
        ("ring", "sharded", "local"),
        ("mpi", "sharded", "global"),
    ],
)
def test_workers_that_wait_for_each_other_go_on_without_those_that_are_lost(exchange, update, batch):
    options = ["--elastic-batch", batch]
    done = lose(4, "workers_that_wait_for_each_other_go_on", exchange, update, options=options)
    assert done.stdout.count("went on") == 2, done.stdout
    becomes = "divided among them" if batch == "global" else "not trained on"
    assert f"lost rank 1; 3 workers go on. Its part of the data, 1/4 of each step, is {becomes}\n" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("exchange", "update", "kind"),
    [
        pytest.param("ring", "replicated", "arrays", marks=pytest.mark.full),
        ("shared_memory", "sharded", "structures and weights"),
    ],
)
def test_the_others_divide_the_data_of_the_lost_anew(exchange, update, kind):
    done = lose(4, "the_data_are_divided_anew", exchange, update, kind)
    assert done.stdout.count("went on") == 2, done.stdout
    assert done.stdout.count("is divided among them") == 2, done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("exchange", "update"), [("ring", "replicated"), pytest.param("shared_memory", "sharded", marks=pytest.mark.full)]
)
def test_the_next_worker_is_the_chief_when_it_is_lost(exchange, update, tmp_path):
    done = lose(4, "chiefs_are_lost", exchange, update, str(tmp_path), script=LOSING_CHIEFS)
    assert done.stdout.count("went on") == 2, done.stdout
    assert "lost rank 0; 3 workers go on" in done.stdout, done.stdout
    assert "lost rank 1; 2 workers go on" in done.stdout, done.stdout
    for epoch in range(1, 7):
        assert f"Epoch {epoch}/6" in done.stdout, done.stdout


@pytest.mark.full
def test_workers_that_come_back_one_by_one_train_one_model(tmp_path):
    done = lose(3, "workers_come_back_one_by_one", str(tmp_path), options=["--respawn"])
    assert done.stdout.count("went on") == 3, done.stdout
    for workers in (2, 3):
        assert f"begins with {workers} workers" in done.stdout, done.stdout


@pytest.mark.full
def test_callbacks_are_called_once_when_the_chief_is_lost_between_two_of_them(tmp_path):
    done = lose(3, "chiefs_are_lost_in_a_hook_and_in_a_validation", str(tmp_path), script=LOSING_CHIEFS)
    assert done.stdout.count("went on") == 1, done.stdout
    assert "lost rank 0; 2 workers go on" in done.stdout, done.stdout
    assert "lost rank 1; 1 worker goes on" in done.stdout, done.stdout


@pytest.mark.full
def test_a_replacement_that_becomes_the_chief_knows_what_was_before(tmp_path):
    options, case = ["--respawn"], "one_that_replaced_another_is_the_chief"
    done = lose(2, case, str(tmp_path), options=options, script=LOSING_CHIEFS)
    assert "rank 1 went on" in done.stdout, done.stdout
    assert "with 2 workers: rank 1 has been replaced" in done.stdout, done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("exchange", "update"), [pytest.param("ring", "replicated", marks=pytest.mark.full), ("shared_memory", "sharded")]
)
def test_the_next_chief_gives_a_newcomer_what_the_one_before_has_not(exchange, update, tmp_path):
    options, case = ["--respawn"], "the_chief_is_lost_as_another_joins"
    done = lose(3, case, str(tmp_path), exchange, update, options=options, script=LOSING_CHIEFS)
    assert done.stdout.count("went on") == 2, done.stdout
    assert (tmp_path / "1.json").read_text() == (tmp_path / "2.json").read_text()


@pytest.mark.full
def test_the_last_worker_goes_on_alone_and_ends_with_its_own_exit_code():
    launch = [sys.executable, "-m", "easyscale", "launch", "-n", "3", "--elastic"]
    done = run([*launch, str(LOSING), "one_is_left"], timeout=200)
    assert done.returncode == 1, done.stderr
    assert "rank 2 went on" in done.stdout, done.stdout + done.stderr
    assert "lost rank 1; 1 worker goes on" in done.stdout, done.stdout
    assert "[2] ArithmeticError: after all" in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].endswith("ended with exit code 1"), done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "end"),
    [
        pytest.param("arrays", "lost", marks=pytest.mark.full),  # as before a worker is replaced
        ("PyDataset", "lost"),
        pytest.param("tf.data", "lost", marks=pytest.mark.full),
        ("arrays", "replaced"),
        ("tf.data", "replaced"),
    ],
)
def test_every_sample_is_trained_on_again(kind, end):
    options = ["--respawn"] if end == "replaced" else []
    done = lose(3, "every_sample_is_trained_on_again", kind, end, options=options)
    assert done.stdout.count("went on") == (3 if end == "replaced" else 2), done.stdout
    assert "is divided among them" in done.stdout, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("exchange", ["shared_memory", pytest.param("ring", marks=pytest.mark.full), "tree"])
def test_the_state_that_a_lost_worker_has_owned_is_taken_from_the_next(exchange):
    done = lose(3, "a_sharded_update_goes_on", exchange, options=["--elastic-batch", "local"])
    assert done.stdout.count("went on") == 2, done.stdout


@pytest.mark.full
def test_checkpoints_of_an_elastic_job_are_of_the_workers_that_are_left(tmp_path):
    done = lose(4, "checkpoints_stay_right", str(tmp_path / "saved"))
    assert done.stdout.count("went on:") == 2, done.stdout
    assert "lost rank 1; 3 workers go on" in done.stdout, done.stdout
    assert "lost rank 2; 2 workers go on" in done.stdout, done.stdout
    done = lose(2, "checkpoints_stay_right", str(tmp_path / "saved"), "again")
    assert done.stdout.count("went on:") == 2, done.stdout
