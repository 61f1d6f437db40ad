"""What a cluster's scheduler has given: hosts and ranks, from the variables that it sets."""

import os
import stat

import click
import pytest

from easyscale.cli.launch import allocations
from easyscale.cli.launch.hosts import Host
from easyscale.cli.launch.planning import LaunchOptions, plan
from easyscale.errors import LaunchError

pytestmark = pytest.mark.timeout(60)

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_JOB_CPUS_PER_NODE": "4(x2),8"}


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A program that answers as Slurm's does."""
    path = tmp_path / "scontrol"
    path.write_text('#!/bin/sh\n[ "$*" = "show hostnames node[1-3]" ] && printf "node1\\nnode2\\nnode3\\n"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def hosts(variables):
    return [tuple(host) for host in allocations.find(variables).hosts()]


def test_nodes_of_slurm_run_the_tasks_of_the_job_or_a_rank_for_each_processor(scontrol):
    assert hosts(JOB) == [("node1", 4), ("node2", 4), ("node3", 8)]
    tasks = {"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x3)"}
    assert hosts({**JOB, **tasks}) == [("node1", 2), ("node2", 2), ("node3", 1)]


def test_what_srun_has_started_and_a_process_outside_of_jobs_have_none():
    assert allocations.find({**JOB, "SLURM_STEP_ID": "0"}) is None
    assert allocations.find({}) is None


def test_nodes_that_cannot_be_asked_for_are_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LaunchError, match=r"Received: `scontrol show hostnames node\[1-3\]`: .*Name them by --hosts"
    ) as raised:
        hosts(JOB)
    assert "\n" not in str(raised.value)


def test_an_mpijob_has_a_file_of_its_workers(tmp_path):
    path = tmp_path / "hostfile"
    path.write_text("train-worker-0.train slots=2\ntrain-worker-1.train slots=2\n")
    variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "OMPI_MCA_orte_default_hostfile": str(path)}
    assert hosts(variables) == [("train-worker-0.train", 2), ("train-worker-1.train", 2)]
    assert allocations.find({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None


def test_a_plan_is_on_the_hosts_of_the_allocation_unless_others_are_named(script, fake_mpirun, scontrol, monkeypatch):
    program = fake_mpirun("Open MPI 5")
    monkeypatch.setenv("PATH", f"{scontrol}:{os.environ['PATH']}")
    for name, value in {**JOB, "SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x3)"}.items():
        monkeypatch.setenv(name, value)
    found = plan(LaunchOptions(script("")))
    assert found.command[0] == program and found.workers == 5
    assert found.hosts == (Host("node1", 2), Host("node2", 2), Host("node3", 1))
    assert plan(LaunchOptions(script(""), hosts="a:2")).hosts == (Host("a", 2),)
    with pytest.raises(click.UsageError, match="Received: -n 6 and 5 slots on .* Ask Slurm for more, .*, or -n 5"):
        plan(LaunchOptions(script(""), ranks=6))
