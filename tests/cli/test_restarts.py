"""A job that fails is started again, after a pause that grows."""

import signal
import subprocess
import time

import pytest

from easyscale.cli.launch import job


class Fails:
    """Stands for a `Job` that fails."""

    was_asked_to_end = False

    def __init__(self, again):
        pass

    def run(self):
        return 3


def test_each_pause_is_twice_the_one_before_up_to_30_s(monkeypatch, capsys):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert job.run(Fails, restarts=7) == 3
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "easyscale: starts again in 1 s (1 of 7)"
    assert said[-1] == "easyscale: starts again in 30 s (7 of 7)"


def test_many_restarts_are_no_overflow(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    job.run(Fails, restarts=2000)
    assert len(pauses) == 2000 and pauses[-1] == 30


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)], ids=["INT", "TERM"])
def test_a_signal_ends_the_pause(ranks, script, tmp_path, number, code):
    path = script("import sys\nopen(__file__ + '.starts', 'a').write('x')\nsys.exit(3)")
    process = ranks.start(
        "launch", "-n", "1", "--restarts", "5", path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # also where a shell has it ignored
    )  # fmt: skip
    said = ""
    while "starts again in 4 s (3 of 5)" not in said:
        said = process.stderr.readline()
        assert said, "it has ended"
    process.send_signal(number)
    assert process.wait(120) == code
    assert process.stderr.read().strip() == ""
    process.stderr.close()
    assert (tmp_path / "train.py.starts").read_text() == "xxx"
