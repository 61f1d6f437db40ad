"""What the launcher makes of its ranks' words: what it says, and when it ends the job."""

import os
import signal
import time

import pytest

from easyscale.cli.launch import supervisor
from easyscale.cli.launch.membership import Membership, Process
from easyscale.cli.launch.messages import decode
from easyscale.cli.launch.stalls import Stalls
from easyscale.cli.launch.streams import Rank
from easyscale.cli.launch.supervisor import Supervisor
from easyscale.progress import Leave


class Shutdown:
    has_begun = False

    def __init__(self):
        self.calls = []

    def stop(self):
        self.calls.append("stop")

    def stop_soon(self):
        self.calls.append("stop soon")

    def kill_soon(self):
        self.calls.append("kill soon")


class Connection:
    def __init__(self):
        self.received = []

    def sendall(self, data):
        self.received.append(data)


class Job:
    """A `Supervisor` of so many ranks that have started, what it has said, and how it has ended the job."""

    def __init__(self, ranks, spares=0, timeout=0.0, on_this_host=True, **options):
        self.shutdown, self.lines = Shutdown(), []
        self.membership = Membership(ranks, has_spares=spares > 0, **options)
        stalls = Stalls(timeout, ranks)
        self.supervisor = Supervisor(self.membership, stalls, self.shutdown, self.lines.append, on_this_host)
        self.connections = [Connection() for _ in range(ranks + spares)]
        self.processes = [self.begin(rank) for rank in range(ranks + spares)]

    def begin(self, rank):
        return self.supervisor.begin(Rank(rank, 1, {}, self.connections[rank], "job"))

    def hear(self, rank, kind, **more):
        self.supervisor.hear(self.processes[rank], {"kind": kind, **more})

    def end(self, rank, status=0, leave=Leave.DONE, met=True, when=0):
        self.hear(rank, "ended", host="a", status=status, when=when, met=met, in_fit=True, leave=leave, missed=0)


def test_a_job_of_which_all_ranks_end_well_is_not_ended():
    job = Job(2)
    for rank in (0, 1):
        job.end(rank)
    assert job.shutdown.calls == [] and job.supervisor.endings.is_success


def test_a_rank_that_fails_ends_the_job_and_is_why():
    job = Job(2)
    job.end(1, status=3 * 256)
    assert job.shutdown.calls == ["stop soon"]
    assert job.supervisor.endings.cause(None).rank == 1


def test_the_first_to_fail_is_known_by_the_clock_of_one_host_and_by_who_is_heard_first_of_several():
    for on_this_host, first in ((True, 1), (False, 0)):
        job = Job(2, on_this_host=on_this_host)
        job.end(0, status=256, when=7)
        job.end(1, status=512, when=5)
        assert job.supervisor.endings.cause(None).rank == first


def test_an_elastic_job_goes_on_without_a_rank_and_says_so():
    job = Job(3, least=2)
    job.end(2, status=9, leave=Leave.NONE)
    assert job.lines == ["easyscale: rank 2 on a was killed by signal 9 (Killed); 2 of 3 workers are left"]
    assert job.shutdown.calls == []
    job.end(1, status=9, leave=Leave.NONE)
    assert job.lines[1:] == ["easyscale: 1 worker is left, fewer than --min-workers 2"]
    assert job.shutdown.calls == ["stop soon"]


def test_nothing_is_survived_when_the_job_is_ending():
    job = Job(3, least=1)
    job.shutdown.has_begun = True
    job.end(2, status=9, leave=Leave.NONE)
    assert job.lines == [] and job.supervisor.endings.ends_job


def test_ranks_that_wait_to_begin_with_mpi_end_if_another_has_ended_without():
    job = Job(2)
    job.end(1, met=False)
    assert job.shutdown.calls == []
    job.hear(0, "begins")
    assert job.shutdown.calls == ["stop soon"]
    assert job.supervisor.endings.cause(None).how == "ended with exit code 0 while other ranks still needed it"


def test_spares_are_told_to_begin_when_all_ranks_have_come():
    job = Job(2, spares=1, least=1)
    job.hear(0, "begins")
    assert job.connections[2].received == []
    job.hear(1, "begins")
    assert job.connections[2].received == [b"begin\n"]


def test_a_spare_that_fails_ends_the_job_until_all_have_begun_with_mpi():
    job = Job(1, spares=2, least=1)
    job.end(1, status=9, met=True)
    assert job.shutdown.calls == []
    job.end(2, status=9, met=False)
    assert job.shutdown.calls == ["stop soon"]
    assert job.supervisor.endings.cause(None).is_spare


def test_spares_end_when_all_ranks_have():
    job = Job(2, spares=1, least=1)
    job.end(0)
    assert job.shutdown.calls == []
    job.end(1)
    assert job.shutdown.calls == ["kill soon"]


def test_a_process_that_replaces_a_rank_counts_when_it_has_joined():
    job = Job(2, spares=1, least=1)
    job.hear(2, "called")
    assert not job.supervisor.beginning.spares
    job.end(1, status=9, leave=Leave.NONE)
    process = job.begin(1)
    assert process == Process(1, 1) and not job.membership.is_member(process)
    job.supervisor.hear(process, {"kind": "joined"})
    assert job.membership.is_member(process)


def test_a_worker_that_vanishes_from_an_elastic_job_has_been_killed(monkeypatch):
    job = Job(2, least=1)
    now = time.monotonic_ns()
    job.supervisor.lose(job.processes[1])
    job.supervisor.tick()
    assert job.lines == []
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + 2 * 10**9)
    job.supervisor.tick()
    how = f"rank 1 on {os.uname().nodename} was killed by signal 9 (Killed)"
    assert job.lines == [f"easyscale: {how}; 1 of 2 workers is left"]


def test_a_worker_that_vanishes_is_why_those_fail_that_waited_for_its_rank():
    job = Job(3, least=1)
    job.supervisor.lose(job.processes[1])
    job.end(0, status=256, leave=Leave.GAVE_UP)
    cause = job.supervisor.endings.cause(None)
    assert (cause.rank, cause.signal, cause.exit_code) == (1, signal.SIGKILL, 137)


def test_a_worker_that_is_stopped_is_reported_like_its_rank(monkeypatch):
    job, now = Job(2, timeout=3.0), time.monotonic()
    job.hear(0, "moves")
    monkeypatch.setattr(supervisor, "state_of", lambda pid: "T")
    for seconds in range(20):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: now + 10 + seconds)
        job.supervisor.tick()
    assert "its process 1 is stopped (state T) and cannot say where" in job.lines[1] + job.lines[2]
    assert job.supervisor.is_stalled and job.shutdown.calls == ["stop"]


def test_a_worker_that_goes_on_is_told_of(monkeypatch):
    job, now = Job(2, timeout=3.0), time.monotonic()
    for seconds in range(20):
        monkeypatch.setattr(supervisor, "state_of", lambda pid, seconds=seconds: "T" if seconds < 5 else "S")
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: now + 10 + seconds)
        job.supervisor.tick()
    assert job.lines[-1] == "easyscale: the ranks go on"
    assert not job.supervisor.is_stalled


def test_the_connection_of_a_rank_that_has_told_of_its_end_means_nothing(monkeypatch):
    job = Job(2, least=1)
    job.end(1)
    job.supervisor.lose(job.processes[1])
    monkeypatch.setattr(time, "monotonic_ns", lambda: 10**18)
    job.supervisor.tick()
    assert job.lines == []


def stands(seconds):
    waits = [{"seconds": seconds, "what": "waits for rank 1", "missing": [1]}]
    return {
        "host": "a", "pid": 7, "connected": True, "waits": waits, "phase": 2, "step": 3, "exchanges": 3, "activity": 0,
        "idle": seconds, "busy": False, "state": "S", "left": False, "stack": "",
    }  # fmt: skip


def test_a_job_that_stands_still_is_reported_then_ended():
    job = Job(2, timeout=10.0)
    job.hear(1, "stands", **stands(0.0) | {"waits": []})
    job.hear(0, "stands", **stands(11.0))
    job.supervisor.tick()
    assert job.lines[0] == "easyscale: the job stands still: 1 of 2 ranks wait for others"
    assert not job.supervisor.is_stalled
    job.hear(0, "stands", **stands(20.5))
    job.supervisor.tick()
    job.supervisor.tick()
    assert job.supervisor.is_stalled and job.shutdown.calls == ["stop"]


def test_a_bus_error_on_a_full_memory_says_what_is_full(monkeypatch):
    from easyscale.cli.launch import shared_memory

    monkeypatch.setattr(shared_memory, "shortage", lambda: "/dev/shm of a is full")
    job = Job(2)
    job.end(0, status=signal.SIGBUS)
    assert job.lines == ["easyscale: /dev/shm of a is full"]


@pytest.mark.parametrize("line", [b"", b"not JSON", b"7", b"[]", b"{}"])
def test_what_is_no_message_is_passed_over(line):
    assert decode(line) is None
