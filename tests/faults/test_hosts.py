"""A job on two emulated hosts, each with a network of its own: one that is lost ends the job, soon and on both."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hosts import Hosts  # noqa: E402

SUMS, TRAINING = Path(__file__).with_name("sums.py"), Path(__file__).with_name("training.py")

pytestmark = [
    pytest.mark.skipif(not Hosts.are_possible(), reason="needs root, and Linux's namespaces, iproute2 and util-linux"),
]


def start(hosts, fault, folder, *options):
    launch = [sys.executable, "-m", "easyscale", "launch", "-n", "4", "--hosts", "node0:2,node1:2", *options]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return hosts.start(0, [*launch, str(SUMS), fault, str(folder)], **pipes)


def wait_until_gone(hosts, number):
    end = time.monotonic() + 120
    while hosts.processes(number) and time.monotonic() < end:
        time.sleep(0.1)
    return hosts.processes(number)


def test_ranks_on_two_hosts_sum_up(tmp_path):
    with Hosts(2) as hosts:
        process = start(hosts, "none", tmp_path)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert sorted(output.splitlines()) == [
            "[1 node0] end of rank 1",
            "[2 node1] end of rank 2",
            "[3 node1] end of rank 3",
            "end of rank 0",
        ]
        assert [hosts.shared_memory(number) for number in (0, 1)] == [[], []]


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("lose", ["--elastic"]),
        ("cut", []),
        pytest.param("lose", [], marks=pytest.mark.full),
        pytest.param("cut", ["--elastic"], marks=pytest.mark.full),
    ],
)
def test_a_host_that_does_not_answer_ends_the_job(tmp_path, how, options):
    with Hosts(2) as hosts:
        process = start(hosts, "sleeps", tmp_path, *options)
        end = time.monotonic() + 120
        while not (tmp_path / "failed").exists() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(2)  # what workers have to say is on its way for so long; TCP would wait minutes for its arrival
        at = time.monotonic()
        getattr(hosts, how)(1)
        _, errors = process.communicate(timeout=120)
        assert time.monotonic() - at < 15  # 8 s, and what a busy machine takes
        assert process.returncode == 1
        assert errors.splitlines()[-1] == "easyscale: host node1 does not answer any more, and with it ranks 2, 3"
        assert wait_until_gone(hosts, 1) == [], "ranks end also on the host that others cannot reach"
        assert hosts.shared_memory(0) == []


def test_a_rank_that_is_killed_is_named_on_its_host(tmp_path):
    with Hosts(2) as hosts:
        process = start(hosts, "sigkill", tmp_path)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 137
        assert errors.splitlines()[-1] == "easyscale: rank 1 on node0 was killed by signal 9 (Killed)"
        assert wait_until_gone(hosts, 1) == []


@pytest.mark.full
def test_a_job_goes_on_without_a_host_that_is_lost(tmp_path):
    """From its last checkpoint, on the hosts that are left, to what one process that nothing happens to comes to."""
    arguments = [str(TRAINING), "ring", "host", "mid-epoch", str(tmp_path)]
    launch = [sys.executable, "-m", "easyscale", "launch", "--hosts", "node0:1,node1:1,node2:1"]
    with Hosts(3) as hosts:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = hosts.start(0, [*launch, "--restarts", "2", "--min-workers", "2", *arguments], **pipes)
        end = time.monotonic() + 120
        while not (tmp_path / "failed").exists() and time.monotonic() < end:
            time.sleep(0.1)
        before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        at = time.time()
        hosts.lose(1)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "easyscale: host node1 does not answer any more, and with it rank 1" in errors
        assert "easyscale: goes on with 2 of 3 workers, without node1" in errors
    print(f"{float((tmp_path / 'goes_on').read_text()) - at:.1f} s from the loss to the end of the next step")
    assert "steps 24" in output and before, "it went on from a checkpoint"
    (tmp_path / "alone").mkdir()
    alone = [str(TRAINING), "ring", "none", "none", str(tmp_path / "alone")]
    subprocess.run([*launch[:4], "-n", "1", *alone], check=True, capture_output=True, timeout=120)
    with np.load(tmp_path / "weights.npz") as found, np.load(tmp_path / "alone" / "weights.npz") as expected:
        for name in expected.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5)


@pytest.mark.full
def test_too_few_hosts_end_the_job(tmp_path):
    with Hosts(2) as hosts:
        process = start(hosts, "sleeps", tmp_path, "--restarts", "2", "--min-workers", "3")
        end = time.monotonic() + 120
        while not (tmp_path / "failed").exists() and time.monotonic() < end:
            time.sleep(0.1)
        hosts.lose(1)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert errors.splitlines()[-1] == (
            "easyscale: a job must have as many workers as --min-workers says, 3. Received: slots for 2 on the hosts "
            "that answer. Use --resume when the others are there again"
        )
