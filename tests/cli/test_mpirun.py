"""The process of mpirun: its group, its signals, its end."""

import contextlib
import os
import signal
import sys

from easyscale.cli.launch.mpirun import Mpirun
from easyscale.cli.launch.signals import caught


def test_signals_to_one_that_has_not_started_do_nothing():
    mpirun = Mpirun(["false"])
    mpirun.send_signal(signal.SIGKILL)
    mpirun.kill()
    assert not mpirun.has_ended and mpirun.files == {}


def test_it_leads_a_group_of_its_own_and_has_its_variables():
    mpirun = Mpirun([sys.executable, "-c", "import os; print(os.getpgrp() == os.getpid(), os.environ['OWN'])"])
    mpirun.start({"OWN": "yes"})
    with open(mpirun.files["stdout"], closefd=False) as file:
        assert file.read() == "True yes\n"
    assert mpirun.wait() == 0 and mpirun.has_ended


def test_a_kill_ends_all_of_its_group():
    mpirun = Mpirun(["sh", "-c", "sleep 100 & echo started; wait"])
    mpirun.start({})
    with open(mpirun.files["stdout"], closefd=False) as file:
        assert file.readline() == "started\n"
        mpirun.kill()
        assert mpirun.wait() == -signal.SIGKILL
        assert file.read() == "", "its end comes when nobody has the other one any more"


@contextlib.contextmanager
def _on_hang_up(handler):
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_call_a_function_and_wake_the_launcher_up():
    seen = []
    with _on_hang_up(signal.SIG_DFL):
        with caught(seen.append, lambda: seen.append("resized")) as wakeup:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGWINCH)
            assert wakeup.recv(16) == bytes([signal.SIGHUP, signal.SIGWINCH])
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    assert seen == [signal.SIGHUP, "resized"]


def test_what_nohup_has_started_does_not_end_with_its_terminal():
    seen = []
    with _on_hang_up(signal.SIG_IGN), caught(seen.append, lambda: None):
        os.kill(os.getpid(), signal.SIGHUP)
    assert seen == []
