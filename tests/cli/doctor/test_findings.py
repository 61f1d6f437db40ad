"""What `easyscale doctor` finds on one host, each broken condition with its cure; no rank is started."""

import os
import resource
import sys
from collections import namedtuple

import pytest

from easyscale.cli.doctor import hosts, machine, report, software, trial
from easyscale.cli.doctor.finding import Finding
from easyscale.cli.doctor.started import Started
from easyscale.cli.launch import shared_memory
from easyscale.cli.launch.containers import ControlGroup

SETTINGS = "ok       settings: none"

Memory = namedtuple("Memory", "total available")


def group_of(folder, membership, files):
    """A `ControlGroup` of these lines of /proc/self/cgroup, and files."""
    for name, text in files.items():
        file = folder / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    own = folder / "own"
    own.write_text(membership)
    return ControlGroup(str(folder / "groups"), str(own))


VERSION_2 = ("0::/jobs/7\n", {
    "jobs/7/cpu.max": "max 100000\n", "jobs/cpu.max": "150000 100000\n",
    "jobs/7/memory.max": "4000000000\n", "jobs/7/memory.current": "1000000000\n", "jobs/memory.max": "max\n",
    "jobs/7/pids.max": "100\n",
})  # fmt: skip
VERSION_1 = ("4:memory:/docker/a\n3:pids:/docker/a\n2:cpu,cpuacct:/docker/a\n1:name=systemd:/\n", {
    "cpu/docker/a/cpu.cfs_quota_us": "150000\n", "cpu/docker/a/cpu.cfs_period_us": "100000\n",
    "memory/docker/a/memory.limit_in_bytes": "4000000000\n", "memory/docker/a/memory.usage_in_bytes": "1000000000\n",
    "memory/memory.limit_in_bytes": "9223372036854771712\n", "pids/docker/a/pids.max": "100\n",
})  # fmt: skip
# In a container the group's folder is the outermost one, whatever /proc says.
INSIDE = ("3:memory:/docker/a\n2:cpu:/docker/a\n1:pids:/docker/a\n", {
    "cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n", "pids/pids.max": "100\n",
    "memory/memory.limit_in_bytes": "4000000000\n", "memory/memory.usage_in_bytes": "1000000000\n",
})  # fmt: skip


@pytest.mark.parametrize(("membership", "files"), [VERSION_2, VERSION_1, INSIDE])
def test_limits_of_a_container_are_those_of_its_group_and_the_groups_around(tmp_path, membership, files):
    group = group_of(tmp_path, membership, files)
    assert (group.cores, group.memory, group.memory_left, group.processes) == (1.5, 4_000_000_000, 3_000_000_000, 100)


@pytest.mark.parametrize(("membership", "files"), [("", {}), ("0::/\n1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n"})])
def test_without_limits_there_are_none(tmp_path, membership, files):
    group = group_of(tmp_path, membership, files)
    assert (group.cores, group.memory, group.memory_left, group.processes) == (None,) * 4


def by_topic(findings):
    return {finding.topic: finding for finding in findings}


def test_a_container_that_gets_less_than_ranks_need_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    found = by_topic(machine.examine(8, group_of(tmp_path, *VERSION_2)))
    assert found["cores"] == Finding(
        "cores", "4 of 8 may be used (0-2,5), and the container has the time of 1.5", "warning",
        "Start no more ranks than that: easyscale launch -n 1",
    )  # fmt: skip
    assert found["memory"].grade == "warning"
    assert found["memory"].cure == "Start fewer ranks, or get more memory: 8 ranks of a small model take 4.0 GB"
    assert found["container"].told == (
        "the container may have 100 processes and threads. Let it have more, as by `docker run --pids-limit=4096`: "
        "8 ranks may have 512"
    )


def test_the_memory_of_a_machine_is_what_counts_where_a_container_may_have_more(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: Memory(2e9, 1e9))
    found = by_topic(machine.examine(2, group_of(tmp_path, *VERSION_2)))["memory"]
    assert (found.grade, found.text) == ("ok", "1.0 GB free of 2.0 GB, which the container has")


@pytest.mark.parametrize(("free", "grade"), [(1_000_000, "fails"), (4_000_000, "warning"), (1 << 32, "ok")])
def test_a_small_dev_shm_is_told_of_with_how_to_make_it_larger(tmp_path, monkeypatch, free, grade):
    monkeypatch.setattr(shared_memory, "_room", lambda folder: (free, free))
    found = by_topic(machine.examine(2, group_of(tmp_path, "", {}), str(tmp_path)))["/dev/shm"]
    assert found.grade == grade
    assert ("mount -o remount,size=8G /dev/shm" in found.told) == (grade != "ok")


def test_a_dev_shm_that_may_not_be_written_is_told_of(tmp_path):
    found = by_topic(machine.examine(2, folder=str(tmp_path / "none")))["/dev/shm"]
    assert found.grade == "warning" and "Mount a tmpfs there" in found.told


@pytest.mark.parametrize(("most", "grade"), [(30, "fails"), (64, "warning"), (1024, "ok")])
def test_a_low_limit_of_open_files_is_told_of_with_how_to_raise_it(monkeypatch, most, grade):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most, most))
    found = by_topic(machine.examine(2))["open files"]
    assert found.grade == grade
    assert ("ulimit -n 1024" in found.told) == (grade != "ok")


def test_a_clock_before_the_installation_is_told_of(monkeypatch):
    monkeypatch.setattr(machine.time, "time", lambda: 86400.0)
    found = by_topic(machine.examine(2))["clock"]
    assert found.told.startswith("1970-01-02 00:00:00 UTC, before EasyScale was installed. Set it: timedatectl")


def test_what_is_missing_or_too_old_is_told_of_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(software, "_least", lambda: {"keras": "3.12", "mpi4py": "4.0"})
    monkeypatch.setattr(software, "_version", lambda name: {"keras": "3.9.2", "mpi4py": "4.0.0"}.get(name))
    keras = by_topic(software.examine())["Keras"]
    assert (keras.grade, keras.told) == (
        "fails", "keras must be 3.12 or later. Received: 3.9.2. Run: pip install 'keras>=3.12'"
    )  # fmt: skip
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(software.keras_backend, "check_installed", lambda: None)
    monkeypatch.setattr(software, "_is_there", lambda name: False)
    backend = by_topic(software.examine())["backend"]
    assert (backend.grade, backend.told) == ("fails", "jax is not installed. Run: pip install -U 'easyscale[jax]'")


def test_without_mpi_it_fails_and_says_what_to_install(cli, fake_mpirun):
    fake_mpirun(None)
    done = cli("doctor")
    assert done.exit_code == 1
    line = next(line for line in done.output.splitlines() if " MPI: " in line)
    assert line == (
        "fails    MPI: several ranks need an MPI runtime. Found no mpirun, here or on PATH. "
        "Run: pip install 'easyscale[mpi]'"
    )
    assert done.output.splitlines()[-1] == "training would fail"
    hosts = cli("doctor", "--hosts", "a,b")
    assert (hosts.exit_code, hosts.output.splitlines()) == (1, [SETTINGS, line, "training would fail"])


def test_a_setting_that_is_wrong_fails_and_is_named(cli, fake_mpirun, monkeypatch):
    fake_mpirun(None)
    monkeypatch.setenv("EASYSCALE_STALL_TIMEOUT", "soon")
    done = cli("doctor")
    assert (
        "fails    settings: EASYSCALE_STALL_TIMEOUT must be a number of seconds, or 0. Received: 'soon'" in done.output
    )


def test_settings_that_easyscale_does_not_know_are_told_of(cli, fake_mpirun, monkeypatch):
    fake_mpirun(None)
    monkeypatch.setenv("EASYSCALE_TEA", "green")
    line = "warning  settings: none; of no meaning: EASYSCALE_TEA. See docs/settings.md for all names"
    assert cli("doctor").output.splitlines()[0] == line
    monkeypatch.setenv("EASYSCALE_EXCHNAGE", "ring")
    done = cli("doctor", "--hosts", "a,b")  # no launcher would start there
    assert (done.exit_code, done.output.splitlines()[1:]) == (1, ["training would fail"])
    assert done.output.startswith("fails    settings: an environment variable of EasyScale's must be spelt right.")


def test_a_report_has_settings_of_easyscale_and_no_other_variable_user_or_home(cli, fake_mpirun, monkeypatch):
    fake_mpirun(None)
    monkeypatch.setattr(sys, "executable", "/home/somebody/bin/python")
    for name, value in {"HOME": "/srv/jo", "LOGNAME": "jonas", "TOKEN": "s3cret", "EASYSCALE_SPARE": "77"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EASYSCALE_RESUME", "/srv/jo/run")
    monkeypatch.setenv("EASYSCALE_EXCHANGE", "ring")
    done = cli("doctor", "--report")
    told = "- settings: EASYSCALE_EXCHANGE=ring, EASYSCALE_RESUME=~/run\n"
    assert done.output.startswith(f"## easyscale doctor\n\n{told}- Python: ")
    assert "| keras | " in done.output
    assert not [word for word in ("s3cret", "TOKEN", "SPARE", "jonas", "somebody", "/srv/jo") if word in done.output]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/srv/ann/a, /srv/anna", "~/a, /srv/anna"),
        ("ann@gpu1: annex, /Users/bob/x", "<user>@gpu1: annex, ~/x"),
        ("Permission denied: '/home/bob'", "Permission denied: '~'"),
    ],
)
def test_a_text_is_anonymous(text, found):
    assert report.anonymous(text, "/srv/ann", "ann") == found


def test_hosts_with_other_versions_are_named_with_the_command_that_makes_them_equal():
    versions = {
        "a": {"Python": "3.11.7", "keras": "3.15.0", "torch": "2.4.0"},
        "b": {"Python": "3.11.7", "keras": "3.15.0", "torch": "2.4.0"},
        "c": {"Python": "3.12.1", "keras": "3.14.0"},
    }
    assert [finding.told for finding in hosts.compare(versions)] == [
        "Python must be the same on all hosts. Received: 3.11.7 on a, 3.12.1 on c. Use one environment on all hosts, "
        "as in a shared folder or an image",
        "keras must be the same on all hosts. Received: 3.15.0 on a, 3.14.0 on c. Run on c: pip install keras==3.15.0",
        "torch must be the same on all hosts. Received: 2.4.0 on a, none on c. Run on c: pip install torch==2.4.0",
    ]
    assert [finding.grade for finding in hosts.compare({"a": {}, "b": {}})] == ["ok"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hosts", "a,a"], "each host must be named once. Received: 'a' twice. Add up its slots"),
        (["--hosts", "a:0"], "a host must be `name` or `name:slots` with one slot or more"),
        (["--hosts", "a", "--hostfile", "b"], "the hosts must come from one place"),
    ],
)
def test_hosts_that_are_wrong_are_refused_before_anything_starts(cli, arguments, said):
    done = cli("doctor", *arguments)
    assert done.exit_code == 2 and said in done.output and len(done.output.splitlines()) == 1


MET = [{"hosts": ["a", "b"], "mpi": "Open MPI"}, {"clocks": [0.0, -3.0]}]
LINKS = [{"links": [[0, 1, 2e-4, 12.5e6]]}]
OPEN = "See that hosts may open connections to each other on all ports, over the network that MPI takes"


@pytest.mark.parametrize(
    ("started", "told"),
    [
        (Started([], "no answer within 9 s"), f"they have not met: no answer within 9 s. {OPEN}"),
        (
            Started(MET, "no answer within 9 s"),
            f"they have met, and cannot send each other long messages: no answer within 9 s. {OPEN}",
        ),
        (
            Started(MET + LINKS, "ImportError: no libfoo.so"),
            "they have met, and not trained: ImportError: no libfoo.so",
        ),
        (Started(MET + LINKS, ""), "they have met, and not trained: they have ended too early"),
    ],
)
def test_ranks_that_do_not_train_say_how_far_they_have_come(monkeypatch, started, told):
    monkeypatch.setattr(trial, "launch", lambda arguments, timeout: started)
    *_, found = trial.examine(["a", "b"], 9)
    assert (found.grade, found.told) == ("fails", f"2 ranks must train together. Received: {told}")


def test_a_slow_network_and_clocks_that_differ_are_warned_of(monkeypatch):
    started = Started([*MET, *LINKS, {"trained": "jax"}], "")
    monkeypatch.setattr(trial, "launch", lambda arguments, timeout: started)
    clock, network, training = trial.examine(["a", "b"], 9)
    assert (clock.grade, clock.where) == ("warning", "b: clock")
    assert clock.told.startswith("3.000 s behind that of a. Run an NTP client on each host")
    assert network.grade == "warning"
    assert network.told.startswith("a to b: latency 200 us, bandwidth 12 MB/s. Send less, by `compression`")
    assert (training.grade, training.told) == ("ok", "2 ranks have trained with jax, over Open MPI")
