"""Output that cannot be written is no traceback: stdout or stderr closed, on a full disk, or a pipe nobody reads."""

import shlex
import subprocess

import pytest

FULL = "> /dev/full"


def run(ranks, arguments, redirection):
    line = f"exec {shlex.join(map(str, arguments))} {redirection}"
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(["bash", "-c", line], env=ranks.environment, timeout=120, **pipes)


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-", FULL, f"{FULL} 2>&1"])
def test_a_job_runs_whose_output_is_closed_or_full(ranks, program, script, tmp_path, redirection):
    path = script(
        """
        import os, sys
        print("said", flush=True)
        print("warned", file=sys.stderr)
        open(__file__ + os.environ["OMPI_COMM_WORLD_RANK"], "w")
        """
    )
    done = run(ranks, [program, "launch", "-n", "2", path], redirection)
    lost = ["easyscale: output is lost from here on, and the job goes on: No space left on device"]
    expected = {
        ">&-": ([], ["[1] warned", "warned"]),
        "2>&-": (["[1] said", "said"], []),
        FULL: ([], ["[1] warned", *lost, "warned"]),
    }.get(redirection, ([], []))
    assert (sorted(done.stdout.splitlines()), sorted(done.stderr.splitlines())) == expected
    assert done.returncode == 0
    assert len(list(tmp_path.glob("train.py[01]"))) == 2


def test_a_job_is_started_again_whose_stderr_is_full(ranks, program, script, tmp_path):
    path = script(
        """
        import os, sys
        first = __file__ + ".first"
        if not os.path.exists(first):
            open(first, "w")
            sys.exit(3)
        open(__file__ + ".ended", "w")
        """
    )
    assert run(ranks, [program, "launch", "-n", "1", "--restarts", "1", path], f"2{FULL}").returncode == 0
    assert (tmp_path / "train.py.ended").exists()


def test_a_script_of_one_rank_has_standard_files_that_are_open(ranks, program, script):
    path = script("import os\nfor file in (0, 1, 2): os.fstat(file)")
    assert run(ranks, [program, "launch", "-n", "1", path], "<&- >&- 2>&-").returncode == 0


def test_a_benchmark_whose_output_is_closed_or_not_read_ends_well(ranks, program):
    bench = [program, "bench", "exchange", "-n", "2", "--sizes", "4KB", "--exchanges", "ring"]
    assert run(ranks, bench, ">&-").returncode == 0
    done = run(ranks, bench, "| true")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "redirection", "code", "said"),
    [
        (["--help"], ">&-", 0, ""),
        (["--help"], FULL, 1, "easyscale: the output must have a place. Received: No space left on device\n"),
        (["--help"], "| true; exit ${PIPESTATUS[0]}", None, ""),
        (["lunch"], "2>&-", 2, ""),
        (["lunch"], "2> /dev/full", 2, ""),
    ],
)
def test_what_commands_say_may_go_nowhere(ranks, program, arguments, redirection, code, said):
    done = run(ranks, [program, *arguments], redirection)
    assert done.stderr == said
    assert code is None or done.returncode == code
