"""`easyscale.run`: what it returns and raises, what workers find, what it refuses, and that nothing stays behind."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from processes import Marked

import easyscale
from easyscale.errors import EasyScaleError, LaunchError, WorkerError

pytestmark = [pytest.mark.xdist_group("run")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a file of tests


class Mistake(Exception):
    """An exception that workers know from nowhere but the function."""


class Unloadable(Exception):
    """An exception that cannot be made of its arguments."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def test_the_result_is_the_chiefs_and_output_streams_into_sys_stdout(capsys):
    def work(base):
        print(f"rank {easyscale.rank()} of {easyscale.size()}: größer")
        print("to stderr", file=sys.stderr)
        return {"rank": easyscale.rank(), "sum": base + np.arange(3)}

    result = easyscale.run(work, 10, n=2, exchange="ring")
    assert result["rank"] == 0
    np.testing.assert_array_equal(result["sum"], [10, 11, 12])
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["[1] rank 1 of 2: größer", "rank 0 of 2: größer"]
    assert "to stderr\n" in shown.err and "[1] to stderr\n" in shown.err


def test_workers_have_this_process_s_directory_path_and_options_in_a_folder_of_this_user(monkeypatch, tmp_path):
    (tmp_path / "beside.py").write_text("NUMBER = 7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def work():
        import beside

        folder = Path(Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")[-1])
        modes = {file.name: file.stat().st_mode & 0o777 for file in [folder, *folder.iterdir()]}
        return os.getcwd(), sys.path, beside.NUMBER, os.environ["EASYSCALE_EXCHANGE"], str(folder), modes, sys.argv[1:]

    directory, path, number, exchange, folder, modes, argv = easyscale.run(work, n=1, exchange="tree")
    assert (directory, number, exchange, argv) == (str(tmp_path), 7, "tree", [])
    assert path == [os.path.abspath(entry) for entry in sys.path]
    assert modes == {Path(folder).name: 0o700, "call": 0o600}
    assert not Path(folder).exists()


def test_the_exception_of_a_worker_is_raised_with_its_traceback_and_rank(capsys):
    def work():
        if easyscale.rank() == 1:
            raise Mistake("on purpose")
        easyscale.communicator.get().barrier()

    with pytest.raises(Mistake, match="^on purpose$") as raised:
        easyscale.run(work, n=2)
    cause = raised.value.__cause__
    assert isinstance(cause, WorkerError) and cause.rank == 1
    first, _, *traceback = str(cause).splitlines()
    assert first == "raised on rank 1 of 2:"
    assert 'raise Mistake("on purpose")' in str(cause) and "worker.py" not in traceback[1]
    assert "on purpose" not in capsys.readouterr().err  # it is shown once


def test_an_exception_that_cannot_be_loaded_is_named():
    def work():
        raise Unloadable("this", "that")

    with pytest.raises(WorkerError, match="^rank 0 of 1 raised Unloadable: this and that$") as raised:
        easyscale.run(work, n=1)
    assert 'raise Unloadable("this", "that")' in str(raised.value.__cause__)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raise", Mistake, "of rank 1"),
        ("exit", WorkerError, r"Received: rank 1 on \S+ ended with exit code 7 while other ranks still needed it"),
    ],
)
def test_the_worker_that_fails_is_named_and_not_the_one_that_waits_for_it(capsys, how, error, message):
    def work():
        easyscale.communicator.get().barrier()
        if easyscale.rank() == 1:
            if how == "raise":
                raise Mistake("of rank 1")
            sys.exit(7)
        easyscale.communicator.get().barrier()

    with pytest.raises(error, match=message):
        easyscale.run(work, n=2)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("easyscale: rank")]
    assert len(said) == 1 and said[0].startswith("easyscale: rank 1 on ")


def test_a_worker_that_is_killed_is_named():
    def work():
        if easyscale.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)

    with pytest.raises(WorkerError, match=r"Received: rank 1 on .* was killed by signal 9 \(Killed\)$"):
        easyscale.run(work, n=2)
    with pytest.raises(WorkerError, match="Received: the exit code 3$"):
        easyscale.run(sys.exit, 3, n=1)
    with pytest.raises(WorkerError, match=r"Received: the end by signal 6 \(Aborted\)$"):
        easyscale.run(os.abort, n=1)
    assert easyscale.run(sys.exit, 0, n=1) is None


def test_what_cannot_be_returned_or_loaded_is_one_line():
    with pytest.raises(TypeError, match="^`function` must return something that can be pickled. Received: lock "):
        easyscale.run(threading.Lock, n=1)

    def work():
        return 1

    work.__module__ = "a_module_of_nobody"
    sys.modules["a_module_of_nobody"] = module = type(sys)("a_module_of_nobody")
    module.work, work.__qualname__ = work, "work"
    try:
        with pytest.raises(EasyScaleError, match="^`function` must be something that workers can load. Received: work"):
            easyscale.run(work, n=1)
    finally:
        del sys.modules["a_module_of_nobody"]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ([3], {}, TypeError, "`function` must be a function. Received: int. Write `easyscale.run(train, n=2)`"),
        ([print, threading.Lock()], {}, TypeError, "something that can be pickled. Received: print (TypeError: cannot"),
        ([print], {"exchnge": "ring"}, ValueError, "Received: option='exchnge'. Did you mean 'exchange'?"),
        ([print], {"dry_run": True}, ValueError, "`option` must be one of ['n', 'exchange', "),
        ([print], {"elastic": "yes"}, TypeError, "`elastic` must be true or false. Received: elastic='yes'"),
        ([print], {"servers": [1]}, TypeError, "`servers` must be a whole number. Received: servers=[1]"),
        ([print], {"n": 0}, ValueError, "the number of ranks must be 1 or more. Received: -n 0. Try -n 2"),
        ([print], {"n": 2, "exchange": "rnig"}, ValueError, "Received: --exchange='rnig'. Did you mean 'ring'?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_before_anything_starts(arguments, options, error, message, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(error) as raised:
        easyscale.run(*arguments, **{"n": 1, **options})
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("n", [1, 2])
def test_a_worker_starts_no_others(n):
    with pytest.raises(LaunchError, match=f"^`run` must be called by a process that is no worker.* rank [01] of {n}"):
        easyscale.run(lambda: easyscale.run(print, n=1), n=n)


def test_a_job_that_is_started_again_returns_its_result(capsys, tmp_path):
    def work():
        if not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            raise Mistake("at first")
        return "well"

    assert easyscale.run(work, n=1, restarts=1) == "well"
    assert "Mistake: at first" in capsys.readouterr().err  # nobody raises it


SCRIPT = """
import os, signal, time
import easyscale

def work():
    {begin}
    print("works", flush=True)
    time.sleep(1000)

if __name__ == "__main__":
    easyscale.run(work, n={n})
"""


@pytest.fixture
def started(tmp_path):
    """A function that starts a script which calls `run`, and returns when workers work; with the processes of it."""
    marked, processes = Marked(), []

    def start(n, begin="pass"):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(SCRIPT).format(n=n, begin=begin))
        environment = {**marked.environment, "TMPDIR": str(tmp_path)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where a shell has it ignored
        processes.append(subprocess.Popen([sys.executable, str(script)], env=environment, preexec_fn=heard, **pipes))
        assert "works" in processes[0].stdout.readline()
        return processes[0]

    yield start, marked
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_behind(started, tmp_path, n, number):
    start, marked = started
    process = start(n)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert (number == signal.SIGINT) == ("KeyboardInterrupt" in errors)
    assert marked.wait_until_gone() == []
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.parametrize("n", [1, 2])
def test_a_second_interrupt_ends_workers_that_do_not_hear_the_first(started, n):
    start, marked = started
    process = start(n, begin="signal.signal(signal.SIGINT, signal.SIG_IGN)")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # the first is under way
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert marked.wait_until_gone() == []


def test_with_hosts_the_folder_is_in_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def work():
        return Path(Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")[-1]).parent

    assert easyscale.run(work, hosts="localhost:2") == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_import_of_easyscale_loads_no_cloudpickle():
    script = "import sys, easyscale; easyscale.run; assert 'cloudpickle' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
