"""`easyscale launch` over the real mpirun: output, exit codes, signals, and that nothing stays behind."""

import functools
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(90)

RANK = 'import os, sys, time; rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])\n'


def read_until(file: int, text: bytes, timeout: float = 20) -> bytes:
    """Read from a file descriptor until `text` has come."""
    data, end = b"", time.monotonic() + timeout
    while text not in data:
        ready, _, _ = select.select([file], [], [], max(0, end - time.monotonic()))
        assert ready, f"{text!r} did not come. Received: {data!r}"
        piece = os.read(file, 4096)
        assert piece, f"{text!r} did not come before the end. Received: {data!r}"
        data += piece
    return data


def test_arguments_environment_and_cores_reach_every_rank(ranks, script, tmp_path):
    path = script(
        RANK + "import json\n"
        "seen = {'argv': sys.argv[1:], 'exchange': os.environ['EASYSCALE_EXCHANGE'],\n"
        "        'threads': os.environ['OMP_NUM_THREADS'], 'cores': sorted(os.sched_getaffinity(0))}\n"
        "open(os.path.join(os.path.dirname(__file__), f'seen{rank}'), 'w').write(json.dumps(seen))\n"
    )
    own = ["--exchange", "x", "-n", "7", "--help", "--", "a b"]
    done = ranks.run("launch", "-n", "2", "--exchange", "tree", path, *own)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    seen = [json.loads((tmp_path / f"seen{rank}").read_text()) for rank in (0, 1)]
    have = sorted(os.sched_getaffinity(0))
    for each in seen:
        assert each["argv"] == own
        assert each["exchange"] == "tree"
        assert each["threads"] == str(max(1, len(have) // 2))
    if len(have) >= 2:
        assert seen[0]["cores"] + seen[1]["cores"] == have


def test_output_is_marked_and_complete(ranks, script):
    path = script(
        RANK + "for i in range(20000): print(rank, i)\nprint('error', rank, file=sys.stderr)\nprint('end', end='')"
    )
    done = ranks.run("launch", "-n", "3", path)
    assert done.returncode == 0
    lines = done.stdout.split("\n")
    assert [line for line in lines if line.startswith("0 ")] == [f"0 {i}" for i in range(20000)]
    for rank in (1, 2):
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert own == [*(f"[{rank}] {rank} {i}" for i in range(20000)), f"[{rank}] end"]
    assert sorted(done.stderr.splitlines()) == ["[1] error 1", "[2] error 2", "error 0"]


def test_the_printed_command_line_works_when_pasted(ranks, script):
    path = script(RANK + "print('rank', rank, os.environ['EASYSCALE_EXCHANGE'], sys.argv[1])")
    line = ranks.run("launch", "--dry-run", "-n", "3", "--exchange", "ring", path, "it's").stdout
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30, env=ranks.environment)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank \d ring it's", done.stdout)) == [f"rank {rank} ring it's" for rank in range(3)]


def test_what_mpirun_forwards_is_marked_alike(ranks, script):
    # A rank that cannot reach the launcher's socket, as on another host.
    path = script(
        RANK + "print('rank', rank); print('error', rank, file=sys.stderr); time.sleep(0.5 * rank)\n"
        "sys.exit(3) if rank == 1 else time.sleep(3)"
    )
    code = (
        "import socket, sys; from easyscale.cli.launch import streams; from easyscale.cli.main import main\n"
        "own = streams.Streams.__init__\n"
        "def elsewhere(self, *arguments): own(self, *arguments); self.name += 'x'\n"
        "streams.Streams.__init__ = elsewhere\n"
        f"main(['launch', '-n', '2', {path!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=ranks.environment
    )
    assert done.returncode == 3
    assert sorted(done.stdout.splitlines()) == ["[1] rank 1", "rank 0"]
    assert done.stderr.splitlines()[-1].startswith("easyscale: rank 1 ")
    assert sorted(done.stderr.splitlines()[:-1]) == ["[1] error 1", "error 0"]


@pytest.mark.parametrize("count", [1, 2])
def test_the_exit_code_is_the_scripts(ranks, script, count):
    done = ranks.run("launch", "-n", count, script("import sys; sys.exit(3)"))
    assert done.returncode == 3


def test_a_rank_that_fails_is_named(ranks, script):
    done = ranks.run("launch", "-n", "2", script(RANK + "sys.exit(3) if rank == 1 else time.sleep(60)"))
    assert done.returncode == 3
    assert done.stderr == f"easyscale: rank 1 on {os.uname().nodename} ended with exit code 3\n"


def test_a_killed_rank_ends_the_job_and_is_named(ranks, script):
    path = script(
        RANK + "print('last words', flush=True)\ntime.sleep(1)\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)"
    )
    start = time.monotonic()
    done = ranks.run("launch", "-n", "2", path)
    assert time.monotonic() - start < 10
    assert done.returncode == 128 + 9
    assert done.stderr == f"easyscale: rank 1 on {os.uname().nodename} was killed by signal 9 (Killed)\n"
    assert sorted(done.stdout.splitlines()) == ["[1] last words", "last words"]


def test_a_job_with_spares_ends_although_no_rank_has_used_mpi(ranks, script):
    done = ranks.run("launch", "-n", "2", "--elastic", "--respawn", script("print('done')"))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[1] done", "done"]


def test_a_worker_lives_although_its_forerunner_ends(ranks, tmp_path):
    path = Path(__file__).with_name("superseded_on_ranks.py")
    done = ranks.run("launch", "-n", "3", "--elastic", "--respawn", "--spares", "5", str(path), str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()) == (0, ["[1] end of rank 1"]), done.stderr


@pytest.mark.parametrize("options", [[], ["--respawn"]])
def test_an_elastic_job_cannot_begin_without_a_rank(ranks, script, options):
    path = script(RANK + "import easyscale\nif rank == 1: os.kill(os.getpid(), 9)\neasyscale.rank()")
    done = ranks.run("launch", "-n", "2", "--elastic", *options, path)
    assert done.returncode == 128 + 9
    assert done.stderr.splitlines() == [
        "easyscale: workers go on without another when all have begun with MPI, not before",
        f"easyscale: rank 1 on {os.uname().nodename} was killed by signal 9 (Killed)",
    ]


@pytest.mark.parametrize(
    ("options", "dies", "code", "how"),
    [
        ([], "os._exit(0)", 1, "ended with exit code 0 while other ranks still needed it"),
        (["--elastic"], "os._exit(0)", 1, "ended with exit code 0 while other ranks still needed it"),
        (["--elastic"], "os.kill(os.getpid(), 9)", 137, "was killed by signal 9 (Killed)"),
    ],
)
def test_the_rank_is_named_because_of_which_the_others_end(ranks, script, options, dies, code, how):
    path = script(RANK + f"import easyscale\neasyscale.rank()\nif rank == 1: {dies}\neasyscale.unshard([rank])")
    done = ranks.run("launch", "-n", "3", *options, path)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1] == f"easyscale: rank 1 on {os.uname().nodename} {how}", done.stderr


@pytest.mark.parametrize("ends", ["sys.exit(7)", "raise ValueError"])
def test_the_end_of_a_forked_child_is_not_that_of_its_rank(ranks, script, ends):
    path = script(
        RANK + f"import easyscale\neasyscale.rank()\nif rank == 1 and os.fork() == 0: {ends}\n"
        "if rank == 1: os.wait()\nprint(easyscale.unshard([rank]))"
    )
    done = ranks.run("launch", "-n", "2", path)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0 1]", "[1] [0 1]"]), done.stderr


def test_a_rank_that_takes_long_to_end_has_its_exit_code(ranks, script):
    """As a TensorFlow that is taken down on a busy machine does."""
    path = script(
        "import atexit, sys, time\n"
        "atexit.register(time.sleep, 5)  # after what easyscale has for the end\n"
        "import easyscale\nif easyscale.rank() == 1: sys.exit(3)\neasyscale.unshard([0])"
    )
    done = ranks.run("launch", "-n", "2", path)
    how = "ended with exit code 3 while other ranks still needed it"
    assert done.stderr.splitlines()[-1] == f"easyscale: rank 1 on {os.uname().nodename} {how}", done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize("unlucky", [0, 1])
def test_an_elastic_job_fails_if_a_rank_dies_outside_of_its_training(ranks, script, unlucky):
    path = script(
        RANK + f"import easyscale\neasyscale.rank()\n"
        f"if rank == {unlucky}:\n    time.sleep(0.5)\n    os.kill(os.getpid(), 9)"
    )
    done = ranks.run("launch", "-n", "2", "--elastic", path)
    assert done.returncode == 137, done.stderr
    name = f"easyscale: rank {unlucky} on {os.uname().nodename} was killed by signal 9 (Killed)"
    left = "1 of 2 workers is left. Outside of fit() the job ends when one of them needs it"
    assert done.stderr.splitlines() == [f"{name}; {left}", name]


def test_ranks_that_wait_for_a_stopped_spare_at_their_end_are_reported(ranks, script, tmp_path):
    path = script(
        """
        import os, subprocess, sys
        from pathlib import Path
        import easyscale
        if easyscale.rank() == 0:
            for spare in Path("/proc").glob("[0-9]*/cmdline"):
                words = spare.read_bytes().split(b"\\0")
                if b"easyscale.elastic.standby" in words and __file__.encode() in words:
                    os.kill(int(spare.parent.name), 19)
        """
    )
    done = ranks.run("launch", "-n", "2", "--elastic", "--respawn", "--spares", "1", "--stall-timeout", "3", path)
    assert done.returncode == 124, done.stderr
    assert f"rank 0 on {os.uname().nodename} waits for all processes to end with MPI, for " in done.stderr


def test_a_worker_process_that_is_killed_beside_its_rank_is_told_of(ranks, script):
    path = script(RANK + "import easyscale\neasyscale.rank()\nif rank == 1: os.kill(os.getppid(), 9)\ntime.sleep(3)")
    done = ranks.run("launch", "-n", "2", "--elastic", path)
    name = f"easyscale: rank 1 on {os.uname().nodename} was killed by signal 9 (Killed)"
    assert done.returncode == 137, done.stderr
    assert done.stderr.splitlines()[0] == f"{name}; 1 of 2 workers is left"


def test_a_rank_that_takes_long_to_end_is_left_alone(ranks, script):
    path = script(
        """
        import ctypes, sys, easyscale
        easyscale.rank()
        libc = ctypes.CDLL(None)
        libc.on_exit(libc.sleep, None)  # for as many seconds as its exit code says
        sys.exit(7)
        """
    )
    done = ranks.run("launch", "-n", "2", "--stall-timeout", "2", path)
    assert done.returncode == 7, done.stderr


def test_a_short_wait_after_long_work_is_no_stall(ranks, script):
    path = script(RANK + "import easyscale\neasyscale.rank()\ntime.sleep(4 + 2 * rank)\neasyscale.unshard([rank])")
    done = ranks.run("launch", "-n", "2", "--stall-timeout", "3", path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("options", "pauses"), [([], 1), (["--elastic", "--respawn"], 0)])
def test_a_rank_that_ends_before_it_has_begun_with_mpi_is_named(ranks, script, options, pauses):
    path = script(RANK + f"import easyscale\ntime.sleep({pauses} * rank)\nif rank == 0: easyscale.rank()")
    done = ranks.run("launch", "-n", "2", *options, "--stall-timeout", "0", path)
    how = "ended with exit code 0 while other ranks still needed it"
    assert (done.returncode, done.stderr) == (1, f"easyscale: rank 1 on {os.uname().nodename} {how}\n")


def test_ranks_that_wait_for_one_to_begin_with_mpi_are_reported(ranks, script):
    path = script(RANK + "import easyscale\nif rank == 1: time.sleep(60)\neasyscale.rank()")
    done = ranks.run("launch", "-n", "2", "--stall-timeout", "3", path)
    assert done.returncode == 124
    assert f"rank 0 on {os.uname().nodename} waits for all ranks to begin with MPI, for " in done.stderr
    assert f"rank 1 on {os.uname().nodename} does not wait" in done.stderr


def test_a_spare_sleeps_before_ranks_begin_with_mpi_and_after(ranks, script):
    path = script(
        """
        import os, time
        import psutil
        import easyscale

        def look():
            processes = psutil.process_iter(["cmdline"])  # which is None of one that has just ended
            found = [one for one in processes if (one.info["cmdline"] or [])[1:4] == ["-m", MODULE, __file__]]
            switches = [sum(one.num_ctx_switches()) for one in found]
            time.sleep(2)
            for one, before in zip(found, switches):
                heavy = [file.path for file in one.memory_maps() if "tensorflow" in file.path]
                print(sum(one.num_ctx_switches()) - before, len(heavy), flush=True)

        MODULE = "easyscale.elastic.standby"
        is_first = os.environ["OMPI_COMM_WORLD_RANK"] == "0"
        if is_first:
            time.sleep(3)
            look()
        easyscale.rank()
        if is_first:
            time.sleep(1)
            look()
        easyscale.unshard([0])
        """
    )
    done = ranks.run("launch", "-n", "2", "--elastic", "--respawn", "--spares", "3", path)
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == 6, done.stdout + done.stderr
    for switches, heavy in found:  # who waits inside MPI looks thousands of times a second
        assert int(switches) < 50 and heavy == "0", found


@pytest.mark.parametrize("whom", ["parked", "worker"])
def test_spares_that_are_killed_before_mpi_has_begun_are_named(ranks, script, whom):
    path = script(
        RANK
        + f"""if rank == 0:
            import psutil
            parked = []
            while len(parked) < 3:
                words = ["-m", "easyscale.elastic.standby", __file__]
                parked = [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[1:4] == words]
            for one in parked:
                (one if {whom!r} == "parked" else one.parent()).kill()
import easyscale
easyscale.rank()"""
    )
    done = ranks.run("launch", "-n", "2", "--elastic", "--respawn", "--spares", "3", path)
    name = f"a spare (--spares) on {os.uname().nodename}"
    expected = f"easyscale: {name} was killed by signal 9 (Killed) before all had begun with MPI"
    assert done.stderr.splitlines()[-1] == expected, done.stderr
    assert done.returncode == 137


def test_an_exception_on_one_rank_ends_the_ranks_that_wait_for_it(ranks, script):
    path = script(
        """
        import numpy as np
        import easyscale
        if easyscale.rank() == 1:
            raise ArithmeticError("only here")
        easyscale.exchange.get("ring").allreduce(np.ones(1000, "float32"))
        """
    )
    start = time.monotonic()
    done = ranks.run("launch", "-n", "3", path)
    assert time.monotonic() - start < 10
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.count("[1] ArithmeticError: only here") == 1
    last = done.stderr.splitlines()[-1]  # Hydra does not say who has called MPI_Abort
    assert re.fullmatch(r"easyscale: (rank 1 on \S+|the job) ended with exit code 1", last)


def test_hosts_that_do_not_answer_show_what_mpirun_says(ranks, script):
    environment = {**ranks.environment, "OMPI_MCA_plm_ssh_agent": "false", "PRTE_MCA_plm_ssh_agent": "false"}
    done = ranks.run("launch", "-n", "2", "--hosts", "no-such-host:2", script(""), env=environment)
    assert done.returncode == 1
    assert "daemon failed to report back" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "easyscale: each host must be one that mpirun can log in to. Received: no-such-host, which it cannot."
    )


def test_the_chiefs_partial_lines_stream_live(ranks, script):
    path = script(
        RANK + "if rank == 0:\n"
        "    assert sys.stdout.isatty() and os.get_terminal_size(1) == (91, 33)\n"
        "    print('1/2 [=>..]', end='\\r')\n"
        "    time.sleep(60)\n"
    )
    chief_end, terminal = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 91, 0, 0))
    process = ranks.start("launch", "-n", "2", path, stdin=terminal, stdout=terminal, stderr=terminal)
    try:
        assert read_until(chief_end, b"1/2 [=>..]\r").endswith(b"1/2 [=>..]\r")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(15)
        os.close(chief_end)
        os.close(terminal)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_a_signal_ends_all_ranks(ranks, script, number, code):
    path = script("import time; print('up'); time.sleep(60)")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    not_ignored = functools.partial(signal.signal, number, signal.SIG_DFL)  # as it is if tests run by `nohup`
    process = ranks.start("launch", "-n", "2", path, preexec_fn=not_ignored, **streams)
    read_until(process.stdout.fileno(), b"[1] up\n")
    process.send_signal(number)
    assert process.wait(10) == code
    process.stdout.close()
    assert ranks.wait_until_gone(2) == []


def test_a_second_ctrl_c_kills_ranks_that_ignore_the_first(ranks, script):
    path = script(
        "import signal, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
        "print('up'); time.sleep(60)"
    )
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    read_until(process.stdout.fileno(), b"[1] up\n")
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert time.monotonic() - start < 4
    process.stdout.close()
    assert ranks.wait_until_gone(2) == []


def test_no_rank_outlives_a_launcher_that_is_killed(ranks, script):
    path = script("import time; print('up'); time.sleep(60)")
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    read_until(process.stdout.fileno(), b"[1] up\n")
    process.kill()
    process.wait()
    process.stdout.close()
    assert ranks.wait_until_gone(8) == []
    for folder in Path("/dev/shm").glob(f"easyscale-{process.pid}-*"):  # nobody is left to remove it
        shutil.rmtree(folder)


def test_standard_input_is_the_chiefs(ranks, script):
    path = script(RANK + "print('read', sys.stdin.read()) if rank == 0 else None")
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.communicate("text", timeout=30)[0] == "read text\n"


def test_a_reader_that_goes_away_ends_the_job(ranks, script):
    path = script("import time\nfor i in range(100000): print('line', i); time.sleep(0.001)")
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    read_until(process.stdout.fileno(), b"line 1\n")
    process.stdout.close()
    assert process.wait(15) == 128 + signal.SIGPIPE
