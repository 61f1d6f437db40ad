"""What ranks have started, and left behind, ends with the job."""

import os
import signal
import subprocess

import psutil
import pytest

# Each is in a session of its own: a child, a stubborn one, one without the environment, one whose parent has ended.
SCRIPT = """
import os, signal, subprocess, sys, time

def note(pid):
    with open(__file__ + ".pids", "a") as file:
        file.write(f"{pid}\\n")

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    note(subprocess.Popen(["sleep", "1000"]).pid)
    note(subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=True).pid)
    WITHOUT_ENVIRONMENT
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            note(os.getpid())
            os.execlp("sleep", "sleep", "1000")
        os._exit(0)
    os.waitpid(child, 0)
time.sleep(0.5)
print("up", flush=True)
END
"""
WITHOUT_ENVIRONMENT = 'note(subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True, env={}).pid)'


def left(path):
    """The processes that are left, which this ends."""
    with open(f"{path}.pids") as file:
        pids = [int(line) for line in file]
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    alive = [process for process in found if process.status() != psutil.STATUS_ZOMBIE]
    for process in alive:
        os.kill(process.pid, signal.SIGKILL)
    return len(pids), [process.name() for process in alive]


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)], ids=["well", "exit3", "killed"]
)
def test_what_ranks_have_started_ends_with_the_job(ranks, script, end, code):
    path = script(SCRIPT.replace("WITHOUT_ENVIRONMENT", WITHOUT_ENVIRONMENT).replace("END", end))
    done = ranks.run("launch", "-n", "2", path)
    assert left(path) == (4, [])
    assert done.returncode == code


@pytest.mark.parametrize("whom", ["worker", "launcher"])
def test_it_ends_although_whoever_watches_it_is_killed(ranks, script, whom):
    path = script(SCRIPT.replace("WITHOUT_ENVIRONMENT", "pass").replace("END", "time.sleep(1000)"))
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[1] up\n", "up\n"]
    started = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in started if "easyscale.cli.launch.worker" in child.cmdline()[2:3]]
    for child in workers if whom == "worker" else [process]:
        child.kill()
    process.wait(120)
    process.stdout.close()
    assert ranks.wait_until_gone() == []
    assert left(path) == (3, [])
