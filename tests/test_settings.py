"""What the launcher and the ranks tell each other by environment variables: one record, read and written in one way."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from launches import environment, run

from easyscale import settings
from easyscale.settings import Devices, Settings

ROOT = Path(__file__).parents[1]
SAID = Settings(
    exchange="hierarchical:tree",
    replication="in_graph",
    compression="bf16",
    devices=Devices(2, "cpu"),
    servers=1,
    elastic=2,
    elastic_batch="local",
    spares=3,
    stall_timeout=7.123456789,
    resume="/checkpoints",
    onednn="off",
    bandwidth="100Mbit",
    latency="20ms",
    profile=1,
    trace="/traces/trace.json",
    trace_steps="10:20",
    launched=10,
    auto=1,
    rank_process=11,
    output="easyscale-1",
    progress="1:2:3",
    spare=4,
    switched_onednn=1,
)


def test_what_is_written_is_read_again():
    assert all(getattr(SAID, setting.name) != setting.default for setting in dataclasses.fields(Settings))
    assert Settings.read(SAID.variables()) == SAID
    assert len(SAID.variables()) == len(dataclasses.fields(Settings))


def test_nothing_said_is_nothing_written():
    assert Settings.read({}) == Settings.read(dict.fromkeys(SAID.variables(), "")) == Settings()
    assert Settings().variables() == {}


def test_variables_are_text():
    assert Settings(devices=Devices(4), stall_timeout=0, exchange="ring").variables() == {
        "EASYSCALE_EXCHANGE": "ring",
        "EASYSCALE_DEVICES": "4",
        "EASYSCALE_STALL_TIMEOUT": "0",
    }


def test_a_name_that_is_nearly_one_is_an_error(monkeypatch):
    monkeypatch.setenv("EASYSCALE_EXCHANG", "ring")
    with pytest.raises(ValueError, match="^an environment variable of EasyScale's must be spelt right") as raised:
        Settings.read()
    assert str(raised.value).endswith("Received: EASYSCALE_EXCHANG='ring'. Did you mean EASYSCALE_EXCHANGE?")


def test_names_of_others_are_left_alone(monkeypatch):
    monkeypatch.setenv("EASYSCALE_TESTS_FULL", "1")
    assert Settings.read() == Settings.read({})


def test_a_record_stays_as_it_is():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SAID.exchange = "ring"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DEVICES", "four", "must be a number of devices, or such as 'gpu:4' or 'cpu:4'. Received: 'four'. Use 2"),
        ("DEVICES", "0", "must be a number of devices, or such as 'gpu:4' or 'cpu:4'. Received: '0'. Use 2"),
        ("SERVERS", "-1", "must be a number of ranks, 0 or more. Received: '-1'. Use 0"),
        ("SPARES", "some", "must be a number of processes, 0 or more. Received: 'some'. Use 0"),
        ("ELASTIC", "yes", "must be a number of workers, 1 or more. Received: 'yes'. Use 1"),
        ("ELASTIC", "0", "must be a number of workers, 1 or more. Received: '0'. Use 1"),
        ("ELASTIC_BATCH", "all", "must be 'global' or 'local'. Received: 'all'. Use global"),
        ("STALL_TIMEOUT", "-1", "must be a number of seconds, or 0. Received: '-1'. Use 60"),
        ("STALL_TIMEOUT", "inf", "must be a number of seconds, or 0. Received: 'inf'. Use 60"),
        ("ONEDNN", "fast", "must be 'auto', 'on' or 'off'. Received: 'fast'. Use auto"),
        ("STALL_TIMEOUT", "a minute", "must be a number of seconds, or 0. Received: 'a minute'. Use 60"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value, message):
    with pytest.raises(ValueError) as raised:
        Settings.read({f"EASYSCALE_{name}": value})
    assert str(raised.value) == f"EASYSCALE_{name} {message}"


@pytest.mark.parametrize("text", ["4", "gpu:4", "cpu:1"])
def test_devices_are_written_as_they_were_read(text):
    assert str(Devices.parse(text)) == text


def test_kinds_of_devices_are_read_in_any_case():
    assert Devices.parse("GPU:4") == Devices(4, "gpu")


def test_several_devices_alone_mean_in_graph():
    assert Settings.read({"EASYSCALE_DEVICES": "2"}).replication == "in_graph"
    assert Settings.read({"EASYSCALE_DEVICES": "1"}).replication is None
    assert Settings.read({"EASYSCALE_DEVICES": "2", "EASYSCALE_REPLICATION": "between_graph"}).replication == (
        "between_graph"
    )


def test_this_process_is_asked_by_default(monkeypatch):
    monkeypatch.setenv("EASYSCALE_EXCHANGE", "tree")
    assert Settings.read().exchange == "tree"


def test_another_job_inherits_none_of_them():
    others = {"PATH": "/bin", "EASYSCALE_TESTS_FULL": "1"}
    assert settings.without(SAID.variables() | others) == others


@pytest.mark.parametrize("launcher", [{}, {"PMI_SIZE": "1", "PMI_RANK": "0"}], ids=["alone", "launched"])
def test_a_script_with_a_wrong_variable_ends_in_one_line(launcher):
    variables = environment(EASYSCALE_SERVERS="two", **launcher)
    done = run([sys.executable, "-c", "import easyscale; easyscale.rank()"], 60, variables)
    assert done.stderr.startswith("ValueError: EASYSCALE_SERVERS must be a number of ranks, 0 or more. Received: 'two'")
    assert done.stderr.count("\n") == 1


def test_a_launcher_with_a_wrong_variable_ends_in_one_line():
    command = [sys.executable, "-m", "easyscale", "launch", "-n", "1", __file__]
    done = run(command, 60, environment(EASYSCALE_STALL_TIMEOUT="soon"))
    rule = "EASYSCALE_STALL_TIMEOUT must be a number of seconds, or 0. Received: 'soon'. Use 60"
    assert (done.returncode, done.stderr) == (1, f"easyscale: {rule}\n")


# What documents and code say of them.


def _named(*files):
    return {name for file in files for name in re.findall(r"\bEASYSCALE_[A-Z_]+\b", file.read_text())}


def test_code_names_no_other_variable_and_reads_each_in_one_place():
    files = [file for folder in ("easyscale", "callbacks", "cli") for file in (ROOT / folder).rglob("*.py")]
    assert _named(*files) <= SAID.variables().keys()
    reading = [file for file in files if re.search(r"environ\W+(get|pop)?\W*EASYSCALE|getenv", file.read_text())]
    assert reading == []


def test_documents_name_those_that_users_set_and_no_others():
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    of_tests = _named(*(ROOT / "tests").glob("*.py")) - SAID.variables().keys()
    public = {settings.variable(setting.name) for setting in dataclasses.fields(Settings) if setting.metadata["option"]}
    assert _named(*documents) - of_tests == public


@pytest.mark.parametrize(
    "field",
    [setting for setting in dataclasses.fields(Settings) if setting.metadata["option"]],
    ids=lambda field: field.name,
)
def test_the_table_of_variables_says_what_the_record_says(field):
    table = (ROOT / "docs" / "settings.md").read_text()
    about, default, option = field.metadata["about"], field.metadata["shown"], field.metadata["option"]
    assert f"| `{settings.variable(field.name)}` | `{option}` | {about} | {default} |" in table.splitlines()


def test_the_options_in_the_table_are_options_of_launch():
    from easyscale.cli.commands.launch import command

    options = {name for option in command.params for name in option.opts}
    assert {
        setting.metadata["option"] for setting in dataclasses.fields(Settings) if setting.metadata["option"]
    } <= options
