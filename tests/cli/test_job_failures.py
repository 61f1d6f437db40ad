"""`easyscale launch` over the real mpirun: ranks that fail, die or do not begin, who is named, and what others do."""

import os
import re
import time
from pathlib import Path

import pytest
from launches import RANK


def test_a_rank_that_fails_is_named(ranks, script):
    done = ranks.run("launch", "-n", "2", script(RANK + "sys.exit(3) if rank == 1 else time.sleep(1000)"))
    assert done.returncode == 3
    assert done.stderr == f"easyscale: rank 1 on {os.uname().nodename} ended with exit code 3\n"


def test_a_killed_rank_ends_the_job_and_is_named(ranks, script):
    path = script(
        RANK + "print('last words', flush=True)\ntime.sleep(1)\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(1000)"
    )
    done = ranks.run("launch", "-n", "2", path)
    assert done.returncode == 128 + 9
    assert done.stderr == f"easyscale: rank 1 on {os.uname().nodename} was killed by signal 9 (Killed)\n"
    assert sorted(done.stdout.splitlines()) == ["[1] last words", "last words"]


def test_what_a_library_logs_while_it_starts_is_shown_if_the_rank_is_killed(ranks, script):
    says = "print('I0000 00:00:1795919932.051321   15195 port.cc:153] oneDNN', file=sys.stderr, flush=True)\n"
    assert ranks.run("launch", "-n", "2", script(RANK + says)).stderr == ""
    done = ranks.run("launch", "-n", "2", script(RANK + says + "if rank == 1: os.kill(os.getpid(), 9)"))
    line, told = done.stderr.splitlines()
    assert line.startswith("[1] I0000 00:00:") and told.endswith("was killed by signal 9 (Killed)")


def test_a_job_with_spares_ends_although_no_rank_has_used_mpi(ranks, script):
    done = ranks.run("launch", "-n", "2", "--elastic", "--respawn", script("print('done')"))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[1] done", "done"]


@pytest.mark.full
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


@pytest.mark.full
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
    path = script(RANK + "import easyscale\nif rank == 1: time.sleep(1000)\neasyscale.rank()")
    done = ranks.run("launch", "-n", "2", "--stall-timeout", "3", path)
    assert done.returncode == 124
    assert f"rank 0 on {os.uname().nodename} waits for all ranks to begin with MPI, for " in done.stderr
    assert f"rank 1 on {os.uname().nodename} does not wait" in done.stderr


@pytest.mark.full
def test_a_spare_sleeps_before_ranks_begin_with_mpi_and_after(ranks, script):
    path = script(
        """
        import os, time
        import psutil
        import easyscale

        def look():
            processes = psutil.process_iter(["cmdline"])  # which is None of one that has just ended
            found = [spare for spare in processes if (spare.info["cmdline"] or [])[2:4] == [MODULE, __file__]]
            switches = [sum(spare.num_ctx_switches()) for spare in found]
            time.sleep(2)
            for spare, before in zip(found, switches):
                heavy = [file.path for file in spare.memory_maps() if "tensorflow" in file.path]
                print(sum(spare.num_ctx_switches()) - before, len(heavy), flush=True)

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


@pytest.mark.full
@pytest.mark.parametrize("whom", ["standby", "worker"])
def test_spares_that_are_killed_before_mpi_has_begun_are_named(ranks, script, whom):
    path = script(
        RANK
        + f"""if rank == 0:
            import psutil
            spares = []
            while len(spares) < 3:
                words = ["easyscale.elastic.standby", __file__]
                found = psutil.process_iter(["cmdline"])
                spares = [spare for spare in found if (spare.info["cmdline"] or [])[2:4] == words]
            for spare in spares:
                (spare if {whom!r} == "standby" else spare.parent()).kill()
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
