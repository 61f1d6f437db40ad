"""How a job is asked to end, and when what has not ended is killed."""

import signal

import pytest

from easyscale.cli.launch.shutdown import Shutdown


class Mpirun:
    has_ended = False

    def __init__(self, told):
        self._told, self.reaches_others = told, False

    def ask_others(self):
        self._told.extend([("others", signal.SIGTERM)] * self.reaches_others)
        return self.reaches_others

    def send_signal(self, number):
        self._told.append(("mpirun", number))

    def kill(self):
        self._told.append(("mpirun", signal.SIGKILL))


class Rank:
    def __init__(self, told, name, lives=True):
        self._told, self._name, self._lives = told, name, lives

    def send_signal(self, number):
        self._told.append((self._name, number))
        return self._lives


class Job:
    """A `Shutdown`, what it has told whom, and a clock that a test sets."""

    def __init__(self, *lives):
        self.told, self.now = [], 0.0
        self.mpirun = Mpirun(self.told)
        self.shutdown = Shutdown(self.mpirun, clock=lambda: self.now)
        self.shutdown.ranks += [Rank(self.told, f"rank {index}", alive) for index, alive in enumerate(lives)]

    def at(self, now):
        """Return what is told at this second."""
        self.told.clear()
        self.now = now
        self.shutdown.tick()
        return list(self.told)


KILLED = [("mpirun", signal.SIGKILL), ("rank 0", signal.SIGKILL), ("rank 1", signal.SIGKILL)]


def test_nothing_ends_that_nobody_has_asked_to():
    job = Job(True, True)
    assert job.at(1e6) == [] and not job.shutdown.has_begun


def test_ranks_that_are_all_on_other_hosts_have_time_for_a_checkpoint_if_mpirun_reaches_them():
    job = Job()
    job.mpirun.reaches_others = True
    job.shutdown.take_signal(signal.SIGTERM)
    assert job.told == [("others", signal.SIGTERM)]
    assert job.at(19.9) == [] and job.at(20.1) == [("mpirun", signal.SIGTERM)]


def test_ranks_have_time_for_a_checkpoint_after_a_sigterm_and_mpirun_kills_none_of_them_meanwhile():
    job = Job(True, True)
    job.shutdown.take_signal(signal.SIGTERM)
    assert job.told == [("rank 0", signal.SIGTERM), ("rank 1", signal.SIGTERM)]
    assert job.shutdown.has_begun and job.at(20.0) == []
    assert job.at(20.1) == [("mpirun", signal.SIGTERM)]
    assert job.at(25.0) == []
    assert job.at(25.2) == KILLED
    assert job.at(1e6) == []


def test_mpirun_gets_a_sigterm_at_once_where_no_rank_of_this_host_is_left():
    job = Job(False)
    job.shutdown.take_signal(signal.SIGTERM)
    assert job.told == [("rank 0", signal.SIGTERM), ("mpirun", signal.SIGTERM)]


@pytest.mark.parametrize(
    ("number", "passed_on"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM), (signal.SIGPIPE, signal.SIGTERM)],
)
def test_mpirun_passes_other_signals_on_and_all_are_killed_after_5_s(number, passed_on):
    job = Job(True, True)
    job.shutdown.take_signal(number)
    assert job.told == [("mpirun", passed_on)]
    assert job.at(5.0) == [] and job.at(5.1) == KILLED


def test_a_second_signal_kills_at_once():
    job = Job(True, True)
    job.shutdown.take_signal(signal.SIGINT)
    job.told.clear()
    job.shutdown.take_signal(signal.SIGINT)
    assert job.told == KILLED
    assert job.shutdown.signals == [signal.SIGINT, signal.SIGINT]


def test_mpirun_has_2_s_to_end_a_job_of_which_a_rank_has_failed():
    job = Job(True, True)
    job.shutdown.stop_soon()
    assert not job.shutdown.has_begun and job.at(2.0) == []
    assert job.at(2.1) == [("mpirun", signal.SIGTERM)]
    assert job.at(7.2) == KILLED


def test_a_failure_does_not_put_off_what_is_due_before():
    job = Job(True, True)
    job.shutdown.kill_soon()
    job.now = 1.0
    job.shutdown.stop_soon()
    assert job.at(2.1) == KILLED


def test_a_job_is_ending_when_mpirun_has_ended():
    job = Job(True)
    job.mpirun.has_ended = True
    assert job.shutdown.has_begun and job.shutdown.signals == []
