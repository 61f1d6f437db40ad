"""What a rank writes of itself is what its watcher reads, also when it cannot answer."""

import os
import signal
import subprocess
import sys
import time

import pytest

from easyscale.cli.launch.stalls import Stalls
from easyscale.cli.launch.watch import Watch
from easyscale.progress import Activity, Progress


def test_two_processes_see_one_record():
    written, file = Progress.open()
    read, _ = Progress.open(file)
    written.phase, written.step, written.exchange, written.purpose = 4, 17, "ring", "gradients"
    for _ in range(3):
        written.moved()
    slot = written.begin_wait(time.monotonic() - 5, "waits for rank 1", [1])
    (wait,) = read.waits
    assert (read.phase, read.step, read.moves) == (4, 17, 3)
    assert wait.about == {"what": "waits for rank 1", "purpose": "gradients", "exchange": "ring", "missing": [1]}
    assert 5 <= wait.seconds < 10
    written.end_wait(slot)
    assert read.waits == []


def test_waits_of_several_threads_are_kept_apart_and_too_many_do_no_harm():
    progress = Progress()
    slots = [progress.begin_wait(100.0 - number, f"waits for rank {number}") for number in range(6)]
    assert len({slot for slot in slots if slot >= 0}) == 4
    assert [wait.about["what"] for wait in progress.waits] == [f"waits for rank {number}" for number in (3, 2, 1, 0)]
    for slot in slots:
        progress.end_wait(slot)
    assert progress.waits == []


RANK = """
import os, sys, time
from easyscale.progress import Progress
progress = Progress.of_this_process(os.environ["EASYSCALE_PROGRESS"].replace("PID", str(os.getpid())))
progress.phase, progress.activity = 2, int(sys.argv[1])
print("up", flush=True)
def here():
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if sys.argv[2] == "sleeps":
            time.sleep(0.01)
        elif sys.argv[2] == "computes now and then":
            begin = time.process_time()
            while time.process_time() - begin < 0.2:
                pass
            time.sleep(0.5)
here()
"""


@pytest.fixture
def watched():
    """A function that starts a process, watches it and returns what its watcher has said after `seconds`."""
    processes = []

    def start(activity, how, seconds, stop=False, timeout=0.5):
        said = []
        watch = Watch(timeout, lambda words: said.append(words) if words["kind"] == "stands" else None)
        environment = {**os.environ, "EASYSCALE_PROGRESS": f"PID:{watch._record}:{watch._writer}"}
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(activity), how],
            env=environment, stdout=subprocess.PIPE, pass_fds=(watch._record, watch._writer),
        )  # fmt: skip
        processes.append(process)
        process.stdout.readline()
        if stop:
            process.send_signal(signal.SIGSTOP)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            watch.look(process.pid)
            time.sleep(0.05)
        return said

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_rank_that_does_not_move_says_where_it_is(watched):
    words = watched(Activity.STEPS, "sleeps", 3.0)[-1]
    assert words["kind"] == "stands" and words["idle"] > 0.5 and not words["busy"]
    assert "in here" in words["stack"]


def test_a_stopped_rank_is_known_to_be_stopped(watched):
    words = watched(Activity.FIRST_STEP, "computes", 3.0, stop=True)[-1]
    assert (words["state"], words["stack"], words["busy"]) == ("T", "", False)


@pytest.mark.full
def test_a_rank_that_traces_or_evaluates_and_computes_takes_its_time(watched):
    assert watched(Activity.FIRST_STEP, "computes", 3.0)[-1]["busy"]
    # On a busy machine it gets no core for a while.
    told = watched(Activity.FIRST_STEP, "computes now and then", 9.0, timeout=3.0)
    assert len(told) >= 2 and all(words["busy"] for words in told), told
    assert not watched(Activity.STEPS, "computes", 3.0)[-1]["busy"]


def words(waits=None, state="S", busy=False, **more):
    told = [{"seconds": waits, "what": "waits for rank 1"}] if waits else []
    position = {"phase": 4, "step": 16, "exchanges": 3, "activity": 0, "idle": 20.0, "left": False, "connected": True}
    return {
        "kind": "stands",
        "host": "a",
        "pid": 7,
        "waits": told,
        "state": state,
        "busy": busy,
        "stack": "",
        **position,
        **more,
    }


def test_one_report_names_who_waits_and_who_does_not():
    stalls = Stalls(10, 3)
    for rank in (0, 2):
        stalls.hear(rank, words(waits=11.0))
    assert stalls.report() == []  # the word of rank 1 may still come
    stalls.hear(1, words(stack='  File "train.py", line 3 in load'))
    lines = stalls.report()
    assert lines[0] == "easyscale: the job stands still: 2 of 3 ranks wait for others"
    assert lines[1] == "  rank 0 on a waits for rank 1, epoch 2, step 17, for 11 s"
    assert '      File "train.py", line 3 in load' in lines
    assert stalls.report() == [] and not stalls.is_over and stalls.culprit == 1
    stalls.hear(0, words(waits=20.5))
    assert stalls.is_over


def test_a_rank_that_moved_after_others_began_to_wait_is_heard_before_a_report(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stalls = Stalls(10, 3)
    for moment in range(8):  # rank 1 has not stood still for 10 s yet
        now[0] += 1
        for rank in (0, 2):
            stalls.hear(rank, words(waits=10.0 + moment))
        assert stalls.report() == []
    stalls.hear(1, words(busy=True, activity=Activity.FIRST_STEP))
    assert stalls.report() == [] and not stalls.is_over


def test_a_rank_that_moves_on_and_on_without_the_others_is_reported(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stalls, said = Stalls(10, 2), []
    while not said and now[0] < 130:
        now[0] += 1
        stalls.hear(0, words(waits=now[0] - 90))
        said = stalls.report()
    assert "  rank 1 does not wait, and nothing is known of it: it moves, or its host does not answer" in said


def test_only_those_that_somebody_waits_for_are_heard_before_a_report():
    stalls = Stalls(10, 3)
    waits = words(waits=11.0)
    waits["waits"][0]["missing"] = [1]
    stalls.hear(0, waits)
    assert stalls.report() == []
    stalls.hear(1, words())
    assert stalls.report(), "rank 2 works by itself, as where nobody waits for all"


def test_nobody_waits_longer_for_a_rank_that_has_ended():
    stalls = Stalls(10, 3)
    stalls.end(1, "ended with exit code 0")
    for rank in (0, 2):
        stalls.hear(rank, words(waits=10.5))
    lines = stalls.report()
    assert lines[-2:] == ["  rank 1 ended with exit code 0", "easyscale: the job is ended now"]
    assert stalls.is_over


def test_who_waited_for_a_rank_that_came_and_ended_at_once_is_heard_again(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for is_reported in (False, True):
        stalls = Stalls(10, 2)
        stalls.hear(0, words(waits=19.0))
        stalls.hear(1, words(busy=not is_reported))
        assert bool(stalls.report()) == is_reported
        now[0] += 1
        stalls.end(1, "ended with exit code 0")
        assert stalls.report() == [] and not stalls.is_over
        now[0] += 2.5
        assert stalls.report() == [] and not stalls.is_over
        now[0] += 1
        if not is_reported:
            assert stalls.report()[-1] == "easyscale: the job is ended now"
        assert stalls.is_over


def test_who_has_come_to_the_end_of_the_script_waits_for_the_others_and_says_for_whom():
    stalls = Stalls(10, 2)
    at_the_end = words(waits=11.0)
    at_the_end["waits"][0]["ends_job"] = False
    stalls.hear(0, at_the_end)
    stalls.hear(1, words(stack='  File "train.py", line 9 in upload'))
    lines = stalls.report()
    assert (
        '      File "train.py", line 9 in upload' in lines and "the job goes on: who has come to the end" in lines[-1]
    )
    at_the_end["waits"][0]["seconds"] = 100.0
    stalls.hear(0, at_the_end)
    assert not stalls.is_over
    stalls.hear(1, words(state="T", idle=21.0))
    assert stalls.is_over, "who is stopped does not come to the end"


def test_a_rank_that_takes_its_time_keeps_others_waiting_without_a_report():
    stalls = Stalls(10, 2)
    stalls.hear(0, words(waits=50.0))
    stalls.hear(1, words(busy=True))
    assert stalls.report() == [] and not stalls.is_over
    stalls.hear(1, words())
    assert stalls.report()


def test_ranks_that_move_again_take_the_report_back():
    stalls = Stalls(10, 2)
    stalls.hear(0, words(waits=11.0))
    stalls.hear(1, words(state="T"))
    assert stalls.report()
    for rank in (0, 1):
        stalls.hear(rank, {"kind": "moves"})
    assert stalls.report() == ["easyscale: the ranks go on"]
    assert stalls.report() == []
