"""What a cluster's scheduler has given: hosts and ranks, from the variables that it sets."""

import os
import socket
import stat

import click
import pytest

from easyscale.cli.launch import allocations
from easyscale.cli.launch.hosts import Host
from easyscale.cli.launch.planning import LaunchOptions, plan
from easyscale.errors import LaunchError

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


# What the MPI operator 0.8 and Trainer 2.3 write for jobs called "train", with two slots each.
OPERATOR = "train-worker-0.train.default.svc slots=2\ntrain-worker-1.train.default.svc slots=2\n"
TRAINER = "train-node-0-0.train slots=2\ntrain-node-0-1.train slots=2\n"


@pytest.fixture
def pod(tmp_path):
    """Returns the variables of a launcher's pod that has this file of hosts."""

    def variables(text):
        path = tmp_path / "hostfile"
        path.write_text(text)
        return {
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "OMPI_MCA_orte_default_hostfile": str(path),
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_set_default_slots": "2",
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        }

    return variables


def test_an_mpijob_has_a_file_of_its_workers(pod):
    assert hosts(pod(OPERATOR)) == [("train-worker-0.train.default.svc", 2), ("train-worker-1.train.default.svc", 2)]
    assert allocations.find({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None


def test_a_trainjob_has_a_file_of_its_nodes_by_the_same_variable(pod):
    assert hosts(pod(TRAINER)) == [("train-node-0-0.train", 2), ("train-node-0-1.train", 2)]


def test_a_pod_without_workers_is_told_so(pod):
    with pytest.raises(LaunchError, match="must have a line like `name:2` for each host"):
        hosts(pod(""))


def test_a_plan_is_on_the_only_worker_of_a_job_and_not_in_the_pod_of_its_launcher(
    script, fake_mpirun, pod, monkeypatch
):
    program = fake_mpirun("Open MPI 5")
    only = OPERATOR.splitlines()[0]
    for name, value in pod(only).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: "train-launcher")
    found = plan(LaunchOptions(script("")))
    assert found.hosts == (Host("train-worker-0.train.default.svc", 2),) and found.workers == 2
    assert found.command[:1] == (program,)
    of_one_rank = plan(LaunchOptions(script(""), ranks=1))
    assert of_one_rank.workers == 1 and "train-worker-0.train.default.svc:2" in of_one_rank.command
    with pytest.raises(click.UsageError, match="-n 3 and 2 slots on .* Give the MPIJob more workers, .* or -n 2"):
        plan(LaunchOptions(script(""), ranks=3))


def test_a_launcher_that_is_the_only_worker_itself_needs_no_ssh(script, fake_mpirun, pod, monkeypatch):
    fake_mpirun("Open MPI 5")
    for name, value in pod("train-launcher.train.default.svc slots=2\n").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: "train-launcher")
    found = plan(LaunchOptions(script("")))
    assert found.hosts == () and found.workers == 2


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
