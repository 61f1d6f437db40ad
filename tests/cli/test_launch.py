"""`easyscale launch` before it starts anything: what it refuses, and the command line that it makes."""

import importlib.util
import os
import shlex
import sys

import pytest

from easyscale import run_module
from easyscale.cli.launch.containers import ControlGroup


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0"], "the number of ranks must be 1 or more. Received: -n 0"),
        (["-n", "-2"], "the number of ranks must be 1 or more. Received: -n -2"),
        (["--exchange", "rign"], "Received: --exchange='rign'. Did you mean 'ring'?"),
        (["--compression", "bf61"], "Received: --compression='bf61'. Did you mean 'bf16'?"),
        (["--replication", "between_grap"], "Received: --replication='between_grap'. Did you mean 'between_graph'?"),
        (["-n", "two"], "-n must be a whole number, 'auto' or 'gpu'. Received: 'two'. Try -n 2"),
        (["-n", "atuo"], "Received: 'atuo'. Did you mean 'auto'?"),
        (["-n", "gpu", "--hosts", "a:2"], "-n gpu counts the GPUs of this machine. Received: -n gpu and hosts"),
        (["-n", "10000000"], "the number of ranks must be 1000000 or less. Received: 10000000"),
        (["--hosts", "a:10000000"], "the number of ranks must be 1000000 or less. Received: 10000000"),
        (["-n", "2", "--servers", "3"], "from 0 to that of the workers. Received: --servers 3 and -n 2"),
        (["-n", "2", "--servers", "-1"], "from 0 to that of the workers. Received: --servers -1 and -n 2"),
        (
            ["--stall-timeout", "nan"],
            "a number of seconds, or 0. Received: --stall-timeout nan. Use 60",
        ),
        (
            ["--stall-timeout", "inf"],
            "a number of seconds, or 0. Received: --stall-timeout inf. Use 60",
        ),
        (["-n", "2", "--ranks", "2"], "numbers of ranks, from 0 to 1, with commas between them. Received: --ranks 2"),
        (["-n", "2", "--ranks", "0,x"], "with commas between them. Received: --ranks 0,x. Use --ranks 0"),
        (
            ["-n", "2", "--min-workers", "1"],
            "--min-workers is for --elastic, or for --restarts on several hosts. Received: --min-workers 1 without it",
        ),
        (["-n", "2", "--elastic-batch", "local"], "is for --elastic. Received: --elastic-batch local without it"),
        (["-n", "2", "--elastic", "--elastic-batch", "x"], "'x' is not one of 'global', 'local'"),
        (["-n", "2", "--elastic", "--min-workers", "3"], "from 1 to the number of workers. Received: --min-workers 3"),
        (["-n", "2", "--respawn"], "--respawn needs --elastic. Received: no --elastic"),
        (["-n", "2", "--elastic", "--spares", "1"], "--spares is for --respawn. Received: --spares 1 without it"),
        (["-n", "2", "--servers", "1", "--elastic", "--respawn"], "for workers of one host. Received: --servers"),
        (["-n", "2", "--hosts", "a:2", "--elastic", "--respawn"], "for workers of one host. Received: --hosts"),
        (["-n", "2", "--elastic", "--devices", "2"], "processes of their own. Received: --devices 2. Use"),
        (["-n", "2", "--elastic", "--replication", "in_graph"], "Received: --replication in_graph. Use --replication"),
        (["--servers", "1", "--exchange", "ring"], "Received: --servers 1 with the exchange 'ring'"),
        (["--exchange", "parameter_server:asinc"], "Did you mean 'parameter_server:async'?"),
        (["--exchange", "ring:async"], "Received: --exchange='ring:async'"),
        (
            ["-n", "2", "--servers", "2", "--hosts", "a:1,b:2"],
            "Received: -n 2 --servers 2 and 3 slots on a:1, b:2. Give the hosts more slots, or -n 1",
        ),
        (
            ["-n", "2", "--replication", "in_graph", "--exchange", "mpi"],
            "'tree']. Received: --exchange='mpi'",
        ),
        (["--devices", "2", "--replication", "between_graph"], "one device for each process. Received: --devices 2"),
        (["--devices", "two"], "a number, or such as 'gpu:4' or 'cpu:4'. Received: 'two'"),
        (["--devices", "0"], "a number, or such as 'gpu:4' or 'cpu:4'. Received: '0'"),
        (["-n", "2", "--replication", "in_graph", "--servers", "1"], "has no servers. Received: --servers"),
        (["--replication", "in_graph", "--hosts", "a:2"], "on one host and has no servers. Received: hosts"),
        (["--hosts", "a:1", "--hostfile", "f"], "the hosts must come from one place"),
        (["--hosts", "a:x"], "a host must be `name` or `name:slots` with one slot or more. Received: 'a:x'"),
        (["--hosts", "a:1,,b:1"], "Received: '' in 'a:1,,b:1'"),
        (["--hosts", "a:0"], "Received: 'a:0'"),
        (["--hosts", "a:1,a:1"], "each host must be named once. Received: 'a' twice"),
        (["--hostfile", "/nowhere/hosts"], "Received: '/nowhere/hosts' (No such file or directory)"),
        (
            ["-n", "4", "--hosts", "a:1,b:2"],
            "Received: -n 4 and 3 slots on a:1, b:2. Give the hosts more slots, or -n 3",
        ),
    ],
)
def test_bad_options_are_refused(cli, script, arguments, message):
    result = cli("launch", *arguments, script(""))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("easyscale launch: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py", "Received: 'missing.py', which does not exist"),
        ("python", "which is not one. Give the script itself, without python"),
        ("/", "Received: '/', which is a directory"),
        ("4", "Received: '4', which is not one. The number of processes is -n 4"),
        (__file__.replace("launch.py", "lunch.py"), f"which does not exist. Did you mean '{__file__}'?"),
    ],
)
def test_what_is_no_script_is_refused(cli, name, message):
    result = cli("launch", "-n", "2", name, "train.py")
    assert result.exit_code == 2
    assert message in result.stderr


def test_no_mpi_runtime_names_the_command_that_installs_one(cli, script, fake_mpirun):
    fake_mpirun(None)
    result = cli("launch", "-n", "2", script(""))
    assert result.exit_code == 1
    assert result.stderr == (
        "easyscale: several ranks need an MPI runtime. Found no mpirun, here or on PATH. "
        "Run: pip install 'easyscale[mpi]'\n"
    )


def test_an_mpirun_of_an_unknown_kind_is_refused(cli, script, fake_mpirun):
    program = fake_mpirun("LAM 7.1.4/MPI 2")
    result = cli("launch", "-n", "2", script(""))
    assert result.exit_code == 1
    assert f"Received: {program} says 'LAM 7.1.4/MPI 2'" in result.stderr


def test_missing_mpi4py_names_the_command_that_installs_it(cli, script, fake_mpirun, monkeypatch):
    fake_mpirun("Open MPI 5")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("launch", "-n", "2", script(""))
    assert result.exit_code == 1
    assert "several ranks need mpi4py in this Python" in result.stderr
    assert "pip install 'easyscale[mpi]'" in result.stderr


def dry_run(cli, *arguments) -> list[str]:
    result = cli("launch", "--dry-run", *arguments)
    assert result.exit_code == 0, result.stderr
    return shlex.split(result.stdout)


AS_ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
HOSTS = ["--hosts", "a:2,b:2"]


@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        ("Open MPI 5", [], ["-n", "3", "--bind-to", "none", "--output", "tag", *AS_ROOT, "--oversubscribe"]),
        ("Open MPI 4", [], ["-n", "3", "--bind-to", "none", "--tag-output", *AS_ROOT, "--oversubscribe"]),
        ("MPICH", [], ["-prepend-rank", "-print-all-exitcodes", "-n", "3"]),
        ("Intel MPI", [], ["-prepend-rank", "-print-all-exitcodes", "-genv", "I_MPI_PIN", "0", "-n", "3"]),
        (
            "Open MPI 5",
            HOSTS,
            [
                "-n",
                "3",
                "--bind-to",
                "none",
                "--output",
                "tag",
                *AS_ROOT,
                "--host",
                "a:2,b:2",
                *("-x", "EASYSCALE_OUTPUT", "-x", "MASTER_ADDR", "-x", "MASTER_PORT"),
                *("--prtemca", "oob_tcp_keepalive_time", "4"),
                *("--prtemca", "oob_tcp_keepalive_intvl", "1"),
                *("--prtemca", "oob_tcp_keepalive_probes", "4"),
                *("--forward-signals", "SIGPWR"),
            ],
        ),
        ("MPICH", HOSTS, ["-prepend-rank", "-print-all-exitcodes", "-hosts", "a:2,b:2", "-n", "3"]),
    ],
)
def test_each_mpirun_gets_its_own_command_line(cli, script, fake_mpirun, monkeypatch, kind, options, line):
    program, path = fake_mpirun(kind), script("")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    worker = run_module.command("easyscale.cli.launch.worker", path)
    assert dry_run(cli, "-n", "3", *options, path) == [program, *line, *worker]


def test_intel_mpi_starts_a_command_for_each_host(cli, script, fake_mpirun):
    program, path = fake_mpirun("Intel MPI"), script("")
    worker = run_module.command("easyscale.cli.launch.worker", path)
    pin = ["-genv", "I_MPI_PIN", "0"]
    assert dry_run(cli, "-n", "3", *HOSTS, path) == [
        program, "-prepend-rank", "-print-all-exitcodes", *pin,
        "-host", "a", "-n", "2", *worker, ":", "-host", "b", "-n", "1", *worker,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "passed"),
    [
        ("Open MPI 5", ["-x", "EASYSCALE_EXCHANGE=tree", "-x", "EASYSCALE_REPLICATION=between_graph"]),
        ("MPICH", ["-genv", "EASYSCALE_EXCHANGE", "tree", "-genv", "EASYSCALE_REPLICATION", "between_graph"]),
    ],
)
def test_choices_travel_as_environment_variables(cli, script, fake_mpirun, kind, passed):
    fake_mpirun(kind)
    line = dry_run(cli, "-np", "2", "--exchange", "tree", "--replication", "between_graph", script(""))
    start = line.index(passed[0])
    assert line[start : start + len(passed)] == passed


def test_arguments_after_the_script_are_the_scripts_own(cli, script, fake_mpirun):
    fake_mpirun("Open MPI 5")
    own = ["--epochs", "3", "-n", "7", "--exchange", "x", "--help", "--", "-m", "a b", "it's", "--dry-run"]
    path = script("")
    line = dry_run(cli, "-n", "2", path, *own)
    assert line[line.index(path) + 1 :] == own


def test_a_module_runs_as_with_python_m(cli, fake_mpirun):
    fake_mpirun("Open MPI 5")
    line = dry_run(cli, "-n", "2", "-m", "package.module", "-n", "7")
    assert line[-5:] == ["easyscale.cli.launch.worker", "-m", "package.module", "-n", "7"]


def test_one_rank_needs_no_mpi(cli, script, fake_mpirun):
    fake_mpirun(None)
    path = script("")
    line = dry_run(cli, "-n", "1", "--exchange", "ring", path, "--epochs", "3")
    assert line == ["EASYSCALE_EXCHANGE=ring", sys.executable, path, "--epochs", "3"]


def test_the_only_rank_may_start_ranks_itself(ranks, script):
    from_launcher = "os.environ | {'OMPI_COMM_WORLD_SIZE': '2'}"
    look = "from easyscale import launchers; print(launchers.detect().size)"
    path = script(f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {look!r}], env={from_launcher})")
    assert ranks.run("launch", "-n", "1", path).stdout == "2\n"


def test_hosts_and_cores_give_the_number_of_ranks(cli, script, fake_mpirun, monkeypatch, tmp_path):
    fake_mpirun("MPICH")
    path = script("")
    (tmp_path / "hosts").write_text("# two hosts\na slots=3\n\nb:2  # second\n")
    line = dry_run(cli, "--hostfile", tmp_path / "hosts", path)
    assert line[line.index("-hosts") : line.index("-n") + 2] == ["-hosts", "a:3,b:2", "-n", "5"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    line = dry_run(cli, path)
    assert line[line.index("-n") + 1] == "6"
    monkeypatch.setattr(ControlGroup, "cores", 3.5)  # as in a container
    line = dry_run(cli, path)
    assert line[line.index("-n") + 1] == "3"


def test_gpus_give_the_number_of_ranks(cli, script, fake_mpirun, monkeypatch):
    fake_mpirun("Open MPI 5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")
    line = dry_run(cli, "-n", "gpu", script(""))
    assert line[line.index("-n") + 1] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "-n gpu needs a GPU. Received: a machine without one" in cli("launch", "-n", "gpu", script("")).stderr


def test_auto_is_the_default_number_of_ranks(cli, script, fake_mpirun, monkeypatch):
    fake_mpirun("Open MPI 5")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    path = script("")
    assert dry_run(cli, "-n", "auto", path) == dry_run(cli, path)


def test_an_option_after_the_script_that_launch_did_not_get_is_reported(cli, script, fake_mpirun):
    fake_mpirun("Open MPI 5")
    path = script("")
    said = cli("launch", "--dry-run", path, "--epochs", "3", "-n", "2").stderr
    assert "`-n 2` after the script's name goes to the script" in said
    assert f"write: easyscale launch -n 2 {path}" in said
    assert "`--elastic` after" in cli("launch", "--dry-run", "-n", "2", path, "--elastic", "-n", "7").stderr
    for own in (["-n", "2", path, "-n", "7"], [path, "--epochs", "3"]):
        assert "after the script's name" not in cli("launch", "--dry-run", *own).stderr


def test_a_home_folder_is_set_where_open_mpi_would_miss_it(cli, script, fake_mpirun, monkeypatch):
    fake_mpirun("Open MPI 5")
    monkeypatch.delenv("HOME")
    assert dry_run(cli, "-n", "2", script(""))[0].startswith("HOME=/")


def test_in_graph_is_one_process_with_as_many_devices(cli, script):
    path = script("")
    line = dry_run(cli, "-n", "3", "--replication", "in_graph", "--exchange", "ring", path)
    variables = ["EASYSCALE_EXCHANGE=ring", "EASYSCALE_REPLICATION=in_graph", "EASYSCALE_DEVICES=3"]
    assert line == [*variables, sys.executable, path]


def test_processes_with_devices_are_in_graph(cli, script, fake_mpirun):
    fake_mpirun("Open MPI 5")
    line = dry_run(cli, "-n", "2", "--devices", "cpu:2", script(""))
    assert line[line.index("-n") + 1] == "2"
    assert "EASYSCALE_REPLICATION=in_graph" in line
    assert "EASYSCALE_DEVICES=cpu:2" in line
