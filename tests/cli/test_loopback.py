"""A job of one host listens to nobody outside of it."""

import subprocess

import psutil
import pytest

SCRIPT = """
import numpy as np
import easyscale
easyscale.exchange.get("ring").allreduce(np.ones(1000))
print("up", flush=True)
while not __import__("os").path.exists(__file__ + ".end"):
    __import__("time").sleep(0.05)
easyscale.exchange.get("ring").allreduce(np.ones(1000))
"""


@pytest.mark.parametrize("options", [[], ["--elastic", "--respawn"]])
def test_all_processes_of_a_job_on_one_host_listen_on_loopback_only(ranks, script, tmp_path, options):
    path = script(SCRIPT)
    process = ranks.start(
        "launch", "-n", "2", *options, path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[1] up\n", "up\n"]
    launcher = psutil.Process(process.pid)
    found = [launcher, *launcher.children(recursive=True)]
    assert sum(path in process.cmdline() for process in found) >= 5, "mpirun, and two processes for each rank"
    listening = [
        (process.name(), each.laddr)
        for process in found
        for each in process.net_connections()
        if each.status == "LISTEN"
    ]
    (tmp_path / "train.py.end").touch()
    assert {address.ip for _, address in listening} <= {"127.0.0.1", "::1"}, listening
    assert process.wait(120) == 0
    process.stdout.close()
