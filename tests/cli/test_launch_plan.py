"""What `easyscale launch` makes of its options, and what it then starts."""

import dataclasses
import itertools
import os
import sys

import click
import pytest

from easyscale.cli.launch import rendezvous
from easyscale.cli.launch.hosts import Host
from easyscale.cli.launch.plan import LaunchPlan
from easyscale.cli.launch.planning import LaunchOptions, plan
from easyscale.settings import Settings


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("EASYSCALE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def planned(script, fake_mpirun):
    """A function that plans with these options, beside an Open MPI."""
    path = script("")
    program = fake_mpirun("Open MPI 5")

    def make(**options):
        found = plan(LaunchOptions(path, **options))
        assert found.runtime is None or found.command[0] == program
        return found

    return make


def test_one_rank_is_the_script_in_this_python(planned):
    found = planned(ranks=1, arguments=("--epochs", "3"))
    assert (found.workers, found.ranks, found.runtime) == (1, 1, None)
    assert found.command[0] == sys.executable and found.command[2:] == ("--epochs", "3")


def test_one_rank_that_may_have_to_start_again_is_a_job(planned):
    assert planned(ranks=1, restarts=2).runtime is not None


def test_servers_are_ranks_and_spares_are_not(planned):
    found = planned(ranks=3, servers=2, exchange="parameter_server")
    assert (found.workers, found.settings.servers, found.ranks) == (3, 2, 5)
    assert found.command[found.command.index("-n") + 1] == "5"
    found = planned(ranks=3, elastic=True, respawn=True, spares=2)
    assert (found.ranks, found.settings.spares, found.settings.elastic) == (3, 2, 1)
    assert found.command[found.command.index("-n") + 1] == "5"


def test_ranks_are_told_what_was_asked_for(planned, tmp_path):
    found = planned(ranks=2, exchange="ring", elastic=True, min_workers=2, stall_timeout=7.5, resume=str(tmp_path))
    assert found.settings == Settings(exchange="ring", elastic=2, stall_timeout=7.5, resume=str(tmp_path))
    passed = [word for flag, word in itertools.pairwise(found.command) if flag == "-x"]
    assert passed == [f"{name}={value}" for name, value in found.settings.variables().items()]
    assert found.command[1:3] == ("--with-ft", "ulfm")


def test_what_the_environment_says_holds_where_no_option_does(planned, monkeypatch):
    monkeypatch.setenv("EASYSCALE_EXCHANGE", "tree")
    monkeypatch.setenv("EASYSCALE_STALL_TIMEOUT", "7.5")
    assert planned(ranks=2).settings == Settings(exchange="tree", stall_timeout=7.5)
    assert planned(ranks=2, exchange="auto", stall_timeout=60.0).settings == Settings(exchange="auto")


def test_a_slower_network_is_one_of_the_options_or_of_the_environment(planned, monkeypatch):
    monkeypatch.setenv("EASYSCALE_LATENCY", "20ms")
    found = planned(ranks=2, bandwidth="100Mbit").settings
    assert (found.bandwidth, found.latency) == ("100Mbit", "20ms")
    with pytest.raises(click.UsageError, match="for ranks that stay. Received: --elastic and --bandwidth 100Mbit"):
        planned(ranks=2, bandwidth="100Mbit", elastic=True)
    with pytest.raises(click.UsageError, match="--latency: a time must be a number and one of"):
        planned(ranks=2, latency="soon")


def test_what_is_recorded_of_steps_is_told_to_the_ranks(planned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = planned(ranks=2, profile=True, trace="trace.json", trace_steps="10:20").settings
    assert found == Settings(profile=1, trace=str(tmp_path / "trace.json"), trace_steps="10:20")
    assert planned(ranks=2).settings == Settings()
    monkeypatch.setenv("EASYSCALE_PROFILE", "1")
    assert planned(ranks=2, trace="trace.json").settings == Settings(profile=1, trace=str(tmp_path / "trace.json"))
    with pytest.raises(click.UsageError, match="--profile is for 2 ranks or more"):
        planned(ranks=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trace": "none/trace.json"}, "--trace must be a file in a folder that exists and may be written. Received: "),
        ({"trace": "/"}, "--trace must be a file in a folder that exists"),
        ({"trace": ""}, "--trace must be a file in a folder that exists"),
        ({"trace": "/tmp/a.json", "trace_steps": "20:10"}, "--trace-steps: steps must be the number of the first one"),
        ({"trace": "/tmp/a.json", "trace_steps": "soon"}, "Received: 'soon'. Write for example 10:20"),
        ({"trace": "/tmp/a.json", "trace_steps": "-1:5"}, "Received: '-1:5'"),
        ({"trace_steps": "1:5"}, "--trace-steps is for --trace. Received: --trace-steps 1:5 without it"),
        ({"profile": True, "ranks": 1}, "--profile is for 2 ranks or more. Received: one. Leave --profile out"),
        ({"trace": "/tmp/a.json", "elastic": True}, "--trace is for ranks that stay. Received: --elastic"),
        ({"profile": True, "servers": 1}, "--profile is for ranks that all train. Received: --servers 1"),
        (
            {"profile": True, "devices": "2"},
            "for ranks of one device each. Received: in-graph replication",
        ),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_one_line(planned, options, said):
    with pytest.raises(click.UsageError) as refused:
        planned(**{"ranks": 2, **options})
    assert said in refused.value.message and "\n" not in refused.value.message


def test_what_the_environment_says_wrongly_is_told_by_its_name(planned, monkeypatch):
    monkeypatch.setenv("EASYSCALE_REPLICATION", "foo")
    with pytest.raises(click.UsageError, match="^`EASYSCALE_REPLICATION` must be one of .*_REPLICATION='foo'"):
        planned(ranks=2)
    monkeypatch.setenv("EASYSCALE_REPLICATION", "in_graph")
    with pytest.raises(click.UsageError, match="^`--replication` must be one of .* --replication='foo'"):
        planned(ranks=2, replication="foo")


def test_what_belongs_to_one_job_is_not_inherited(planned, monkeypatch):
    told = Settings(servers=1, elastic=1, spares=2, launched=3, rank_process=4, output="one", progress="1:2:3", spare=5)
    for name, value in told.variables().items():
        monkeypatch.setenv(name, value)
    assert planned(ranks=2).settings == Settings()


def test_hosts_give_the_number_of_ranks(planned):
    found = planned(hosts="a:2,b:1")
    assert (found.hosts, found.workers) == ((Host("a", 2), Host("b", 1)), 3)


def test_planning_changes_nothing(planned, monkeypatch):
    monkeypatch.setenv("EASYSCALE_ELASTIC", "3")
    before = dict(os.environ)
    planned(ranks=2, elastic=True, stall_timeout=5.0)
    assert dict(os.environ) == before


def test_a_plan_stays_as_it_is(planned):
    with pytest.raises(dataclasses.FrozenInstanceError):
        planned(ranks=1).workers = 2


def test_a_script_that_is_not_there_is_no_plan(tmp_path):
    with pytest.raises(click.UsageError, match="which does not exist"):
        plan(LaunchOptions(str(tmp_path / "train.py"), ranks=1))


def test_the_only_rank_takes_the_place_of_the_launcher_and_belongs_to_no_other_job(monkeypatch):
    others = {"HOME": "/", "TF_ENABLE_ONEDNN_OPTS": "0"}
    monkeypatch.setattr(os, "environ", {"EASYSCALE_ELASTIC": "2", "EASYSCALE_SPARES": "1", **others})
    started = []
    monkeypatch.setattr(os, "execve", lambda *words: started.append(words) or sys.exit(0))
    with pytest.raises(SystemExit):
        LaunchPlan(Settings(exchange="ring"), ("python", "train.py")).run()
    ((program, command, told),) = started
    of_other_tools = {*rendezvous.meeting_place(), *rendezvous.of_rank(None, rendezvous.meeting_place())}
    assert (program, command, of_other_tools - set(told)) == ("python", ("python", "train.py"), set())
    variables = {"EASYSCALE_EXCHANGE": "ring", "EASYSCALE_LAUNCHED": str(os.getpid()), **others}
    assert {name: value for name, value in told.items() if name not in of_other_tools} == variables


def test_auto_runs_the_script_by_way_of_a_module_with_one_seed_and_alone_as_it_is(planned):
    path, *_ = planned(ranks=1).command[1:]
    assert planned(auto=True, ranks=1).command == planned(ranks=1).command
    several = planned(auto=True, ranks=2, arguments=("--epochs", "3"))
    assert several.command[-4:] == ("easyscale.auto.script", path, "--epochs", "3")
    assert 0 <= several.settings.auto < 2**31
    assert planned(auto=True, ranks=2, module=True).command[-3:-1] == ("easyscale.auto.script", "-m")


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"elastic": True}, "--elastic"),
        ({"servers": 1}, "--servers"),
        ({"devices": "2"}, "--devices"),
        ({"replication": "in_graph"}, "--replication in_graph"),
        ({"resume": "."}, "--resume"),
    ],
)
def test_auto_refuses_what_needs_a_script_that_knows_of_it(planned, options, given):
    with pytest.raises(click.UsageError) as raised:
        planned(auto=True, ranks=2, **options)
    assert f"Received: --auto and {given}. Leave one of them out" in raised.value.message
