"""`easyscale launch` in jobs of a real Slurm: ranks are those of the job, and one that is asked to end goes on."""

import shlex
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster  # noqa: E402

TRAINING = Path(__file__).parents[1] / "faults" / "training.py"
SBATCH = Path(__file__).parents[2] / "examples" / "slurm.sbatch"
LAUNCH = f"{shlex.quote(sys.executable)} -m easyscale launch"

pytestmark = [
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(
        not Cluster.is_possible(), reason="needs root and Slurm: apt-get install slurmctld slurmd slurm-client"
    ),
]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(nodes=2, cpus=2) as cluster:
        yield cluster


@pytest.fixture
def ranks(tmp_path):
    """A script in which each rank says where it is."""
    path = tmp_path / "where.py"
    path.write_text(
        "import os, easyscale\nprint('rank', easyscale.rank(), 'of', easyscale.size(), os.environ['SLURMD_NODENAME'])\n"
    )
    return path


def where(output):
    return sorted(line.partition("rank ")[2] for line in output.splitlines() if "rank " in line)


def test_ranks_are_the_tasks_of_the_job_on_all_of_its_nodes(cluster, ranks):
    job = cluster.submit(["#SBATCH --nodes=2 --ntasks=3", f"{LAUNCH} {ranks}"])
    assert where(cluster.wait(job)) == ["0 of 3 node1", "1 of 3 node1", "2 of 3 node2"]


def test_a_function_travels_by_a_folder_that_all_nodes_of_the_job_see(cluster, tmp_path):
    script = tmp_path / "runs.py"
    script.write_text(
        "from pathlib import Path\nimport easyscale\n\n"
        "def folder():\n"
        "    command = Path('/proc/self/cmdline').read_text().rstrip(chr(0))\n"
        "    return easyscale.size(), str(Path(command.split(chr(0))[-1]).parent)\n\n"
        "print('found', *easyscale.run(folder))\n"
    )
    job = cluster.submit(["#SBATCH --nodes=2 --ntasks=3", f"cd {tmp_path} && {shlex.quote(sys.executable)} {script}"])
    assert f"found 3 {tmp_path}" in cluster.wait(job)


def test_without_tasks_ranks_are_the_processors_of_the_job(cluster, ranks):
    job = cluster.submit(["#SBATCH --nodes=1 --exclusive", f"{LAUNCH} {ranks}"])
    found = where(cluster.wait(job))
    assert [line[:6] for line in found] == ["0 of 2", "1 of 2"] and len({line[7:] for line in found}) == 1


def test_more_ranks_than_tasks_are_refused(cluster, ranks):
    job = cluster.submit(["#SBATCH --nodes=2 --ntasks=3", f"{LAUNCH} -n 4 {ranks}"])
    assert (
        "Received: -n 4 and 3 slots on node1:2, node2:1. Ask Slurm for more, such as `sbatch --ntasks`, or -n 3"
        in cluster.wait(job)
    )


def test_the_doctor_looks_at_the_nodes_of_the_job(cluster):
    doctor = f"{shlex.quote(sys.executable)} -m easyscale doctor"
    said = cluster.wait(cluster.submit(["#SBATCH --nodes=2 --ntasks=3", doctor]))
    lines = said.splitlines()
    assert [f"ok       {node}: reached: yes" in lines for node in ("node1", "node2")] == [True, True], said
    assert any(line.startswith("ok       training: 2 ranks have trained") for line in lines), said
    assert lines[-1] == "training works"


def test_a_job_that_is_asked_to_end_is_queued_again_and_goes_on(cluster, tmp_path):
    """By the batch script of the examples, which hears a signal before its time is over."""
    folders = {name: tmp_path / name for name in ("stopped", "undisturbed")}
    jobs = {}
    for name, folder in folders.items():
        folder.mkdir()
        text = SBATCH.read_text().replace("easyscale launch train.py", f"{LAUNCH} {TRAINING} ring {{}} {folder}")
        text = text.format("pauses mid-epoch" if name == "stopped" else "none none")
        lines = [line for line in text.splitlines()[1:] if not line.startswith(("#SBATCH --output", "#SBATCH --n"))]
        jobs[name] = cluster.submit(["#SBATCH --nodes=1", "#SBATCH --ntasks=2", *lines])
    end = time.monotonic() + 120
    while not (folders["stopped"] / "failed").exists() and time.monotonic() < end:
        time.sleep(0.2)
    cluster.signal(jobs["stopped"], "TERM")
    cluster.go_on(jobs["stopped"])
    said = cluster.wait(jobs["stopped"])
    assert "asked to end; start again to go on" in said and "steps 24" in said, said
    assert "steps 24" in cluster.wait(jobs["undisturbed"])
    with (
        np.load(folders["stopped"] / "weights.npz") as found,
        np.load(folders["undisturbed"] / "weights.npz") as expected,
    ):
        for name in expected.files:
            np.testing.assert_array_equal(found[name], expected[name])
