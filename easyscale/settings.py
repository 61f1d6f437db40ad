"""Environment variables and exit codes by which `easyscale launch` and the ranks communicate.

The variables are the fields of a record, `Settings`, which processes read; `Settings.variables` writes them for other
processes. An argument in the script takes precedence over the variable, which takes precedence over the default.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from easyscale import quantities

__all__ = ["RESTART", "STALLED", "Devices", "Settings", "is_known", "variable", "without"]

RESTART = 75  # asked to end, the job has written a checkpoint: restart it. EX_TEMPFAIL of sysexits.h
STALLED = 124  # ranks have waited for others for twice the timeout. As in timeout(1)


@dataclass(frozen=True)
class Devices:
    """The in-graph devices of each process: their number, and their kind, `"gpu"`, `"cpu"` or `""` for any."""

    count: int
    kind: str = ""

    @classmethod
    def parse(cls, text: str) -> "Devices":
        """Parse a text such as `"4"` or `"gpu:4"`.

        Raises:
            ValueError: If it has another format.
        """
        found = re.fullmatch(r"(?:(gpu|cpu):)?([1-9]\d*)", text.lower())
        if found is None:
            raise ValueError(f"devices must be a number, or such as 'gpu:4' or 'cpu:4'. Received: '{text}'")
        return cls(int(found[2]), found[1] or "")

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}" if self.kind else str(self.count)


def _number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ValueError
        return int(text)

    return parse


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds


def _bandwidth(text: str) -> str:
    quantities.parse_bandwidth(text)
    return text


def _latency(text: str) -> str:
    quantities.parse_seconds(text)
    return text


def _steps(text: str) -> str:
    quantities.parse_steps(text)
    return text


def _batch(text: str) -> str:
    if text not in ("global", "local"):
        raise ValueError
    return text


def _onednn(text: str) -> str:
    if text not in ("auto", "on", "off"):
        raise ValueError
    return text


def _setting(
    default: Any,
    about: str,
    parse: Callable[[str], Any] = str,
    rule: str = "",
    remedy: str = "",
    option: str = "",
    shown: str = "none",
) -> Any:
    """Return a field of `Settings`.

    Args:
        default: The value if the variable is not set.
        about: String. A description.
        parse: Function. Parses the variable's text; raises `ValueError` for an invalid one.
        rule: String. The valid values, for error messages.
        remedy: String. A value to use instead of an invalid one.
        option: String. The option of `easyscale launch` that sets it. Defaults to `""`: users do not set it.
        shown: String. The default as shown in the documentation.
    """
    told = {"about": about, "parse": parse, "rule": rule, "remedy": remedy, "option": option, "shown": shown}
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class Settings:
    """Settings of this process, or of one about to start. `exchange` is `EASYSCALE_EXCHANGE`, and so on.

    Names of exchanges, replications and compressions are checked where they are used.

    Example:

    >>> Settings.read({"EASYSCALE_SERVERS": "2"}).servers
    2
    >>> Settings(exchange="ring", stall_timeout=7.5).variables()
    {'EASYSCALE_EXCHANGE': 'ring', 'EASYSCALE_STALL_TIMEOUT': '7.5'}
    """

    exchange: str | None = _setting(None, "How gradients are exchanged", option="--exchange", shown="`auto`")
    replication: str | None = _setting(
        None, "`between_graph` or `in_graph`", option="--replication",
        shown="`in_graph` with several devices, else `between_graph`",
    )  # fmt: skip
    compression: str | None = _setting(
        None,
        "Compression of gradients: `int8`, `bf16`, ..., or `auto`",
        option="--compression",
    )
    devices: Devices | None = _setting(
        None, "Devices of each process, in-graph: `4`, `gpu:4` or `cpu:4`", Devices.parse,
        "a number of devices, or such as 'gpu:4' or 'cpu:4'", "2", "--devices", "all GPUs, or one CPU",
    )  # fmt: skip
    servers: int = _setting(
        0, "Number of ranks that serve and do not train", _number(0),
        "a number of ranks, 0 or more", "0", "--servers", "`0`",
    )  # fmt: skip
    elastic: int | None = _setting(
        None, "Continue without workers that fail, down to this number", _number(1),
        "a number of workers, 1 or more", "1", "--min-workers", "a failure ends the job",
    )  # fmt: skip
    elastic_batch: str = _setting(
        "global", "Which batch size a failure leaves unchanged: `global` or `local`", _batch,
        "'global' or 'local'", "global", "--elastic-batch", "`global`",
    )  # fmt: skip
    spares: int = _setting(
        0, "Number of processes that wait to replace workers", _number(0),
        "a number of processes, 0 or more", "0", "--spares", "`0`",
    )  # fmt: skip
    stall_timeout: float = _setting(
        60.0, "Seconds a rank may wait before a report; 0: no limit", _seconds,
        "a number of seconds, or 0", "60", "--stall-timeout", "`60`",
    )  # fmt: skip
    resume: str | None = _setting(
        None, "Folder of the checkpoints to continue from", option="--resume", shown="that of `Distribute`"
    )
    onednn: str = _setting(
        "auto",
        "oneDNN's kernels: `on`, `off`, or `auto`: where they are faster and `TF_ENABLE_ONEDNN_OPTS` is not set",
        _onednn, "'auto', 'on' or 'off'", "auto", "--onednn", "`auto`",
    )  # fmt: skip
    bandwidth: str | None = _setting(
        None, "Limit of each rank's outgoing bandwidth, such as `100Mbit`", _bandwidth,
        "a number above 0 and a unit", "100Mbit", "--bandwidth",
    )  # fmt: skip
    latency: str | None = _setting(
        None, "Delay added to each message, such as `20ms`", _latency,
        "a number and a unit", "20ms", "--latency",
    )  # fmt: skip
    profile: int = _setting(
        0, "`1`: at the end of a `fit()` the chief prints where the time of its steps went", _number(0), "1 or 0", "1",
        "--profile", "`0`",
    )  # fmt: skip
    trace: str | None = _setting(None, "File for a timeline of all ranks, for Perfetto", option="--trace")
    trace_steps: str = _setting(
        "0:100", "Steps in the timeline: the first, and the one after the last", _steps,
        "the numbers of two steps", "10:20", "--trace-steps", "`0:100`",
    )  # fmt: skip
    # Set by EasyScale's own processes, not by users.
    launched: int | None = _setting(None, "The process that `launch` has become, the only one of its job", _number(1))
    auto: int | None = _setting(None, "The seed of all ranks, where scripts do not know of EasyScale", _number(0))
    rank_process: int | None = _setting(None, "The process that is a rank; its children are none", _number(1))
    output: str | None = _setting(None, "Name of the launcher's socket; see `streams.py`")
    progress: str = _setting("", "Where a rank writes what it does; see `Progress.of_this_process`")
    spare: int | None = _setting(None, "Descriptor of the socket of a spare; see `standby.py`", _number(0))
    switched_onednn: int | None = _setting(
        None, "`1`: the launcher has switched on oneDNN; see `onednn.py`", _number(1)
    )

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, names: Iterable[str] | None = None) -> "Settings":
        """Read the variables. An empty one counts as unset; several devices imply in-graph replication.

        Args:
            environment: Mapping. Defaults to `None`: that of this process.
            names: The fields to read. Defaults to `None`: all.

        Raises:
            ValueError: If one has an invalid value, or this process has a variable whose name looks misspelt.
        """
        if environment is None:
            environment = os.environ
            _check_names(environment)
        said = {name: text for name in names or _VARIABLES if (text := environment.get(_VARIABLES[name]))}
        found = cls(**{name: _parsed(name, text) for name, text in said.items()})
        if found.replication is None and found.devices is not None and found.devices.count > 1:
            return replace(found, replication="in_graph")
        return found

    def variables(self) -> dict[str, str]:
        """Return the environment variables for these settings, without those that have their defaults."""
        said = {
            setting.name: getattr(self, setting.name)
            for setting in fields(self)
            if getattr(self, setting.name) != setting.default
        }
        return {variable(name): str(value).removesuffix(".0") for name, value in said.items()}


def variable(name: str) -> str:
    """Return the environment variable of a field of `Settings`."""
    return f"EASYSCALE_{name.upper()}"


def is_known(name: str) -> bool:
    """Return whether an environment variable belongs to a field of `Settings`."""
    return name in _NAMES


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of `Settings`, for another job started from here."""
    return {name: value for name, value in environment.items() if not is_known(name)}


_FIELDS = {setting.name: setting.metadata for setting in fields(Settings)}
_VARIABLES = {name: variable(name) for name in _FIELDS}
_NAMES = frozenset(_VARIABLES.values())


def _check_names(environment: Mapping[str, str]) -> None:
    prefix = variable("")
    for name in environment:
        if name.startswith(prefix) and not is_known(name):
            near = difflib.get_close_matches(name.removeprefix(prefix).lower(), _FIELDS, n=1, cutoff=0.8)
            if near:
                raise ValueError(
                    f"an environment variable of EasyScale's must be spelt right. Received: "
                    f"{name}={environment[name]!r}. Did you mean {variable(near[0])}?"
                )


def _parsed(name: str, text: str) -> Any:
    about = _FIELDS[name]
    try:
        return about["parse"](text)
    except ValueError:
        rule = about["rule"] or "what `easyscale launch` has set"
        remedy = f"Use {about['remedy']}" if about["remedy"] else "Unset it"
        raise ValueError(f"{variable(name)} must be {rule}. Received: {text!r}. {remedy}") from None
