"""Options shared by several commands: their definitions, parsing and validation."""

import difflib
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from easyscale.cli.launch import hosts as forms
from easyscale.cli.launch.hosts import Host
from easyscale.errors import EasyScaleError, unknown
from easyscale.quantities import parse_bandwidth, parse_seconds

__all__ = [
    "Workers",
    "check_between_devices",
    "check_files",
    "check_image_size",
    "check_least",
    "check_name",
    "check_network",
    "check_servers",
    "check_writable",
    "files",
    "hosts",
    "network",
    "parse",
    "parse_exchanges",
    "parse_hosts",
    "parse_names",
    "parse_numbers",
]

T = TypeVar("T")


class Workers(click.ParamType):
    """A number of workers: an integer, `auto` or `gpu`."""

    name = "workers"
    words = ("auto", "gpu")
    rule = "a whole number, 'auto' or 'gpu'"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int | str:
        """Return an integer, or the word."""
        if isinstance(value, int) or value in self.words:
            return value
        try:
            return int(str(value))
        except ValueError:
            near = difflib.get_close_matches(str(value), self.words, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else "Try -n 2"
            raise click.UsageError(f"-n must be {self.rule}. Received: {value!r}. {hint}") from None


def files(json: str, plot: str) -> Callable[[Callable], Callable]:
    """Add the options `--json` and `--plot`, with these help texts, as `json_file` and `plot_file`."""

    def add(command: Callable) -> Callable:
        command = click.option("--plot", "plot_file", metavar="FILE.png", help=plot)(command)
        return click.option("--json", "json_file", metavar="FILE", help=json)(command)

    return add


def hosts(command: Callable) -> Callable:
    """Add the options `--hosts` and `--hostfile`, which `parse_hosts` parses."""
    command = click.option("--hostfile", metavar="FILE", help="The hosts in a file: one a line, `a:2` or `a slots=2`.")(
        command
    )
    return click.option("--hosts", metavar="A:2,B:2", help="The hosts, each with the number of ranks that it can run.")(
        command
    )


def network(command: Callable) -> Callable:
    """Add the options `--bandwidth` and `--latency`, which emulate a slower network."""
    command = click.option("--latency", metavar="T", help="Delay each message that a rank sends, such as 20ms.")(
        command
    )
    return click.option("--bandwidth", metavar="B", help="Limit each rank's outgoing bandwidth, such as 100Mbit.")(
        command
    )


def parse_hosts(hosts: str | None, hostfile: str | None) -> list[Host]:
    """Return the hosts from a list or a file; none if neither is given."""
    if hosts is not None and hostfile is not None:
        raise click.UsageError("the hosts must come from one place. Received: --hosts and --hostfile. Leave one out")
    try:
        if hosts is not None:
            return forms.parse(hosts)
        return forms.read(hostfile) if hostfile is not None else []
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def check_network(bandwidth: str | None, latency: str | None) -> None:
    """Reject an invalid bandwidth or latency."""
    if bandwidth is not None:
        parse("--bandwidth", bandwidth, parse_bandwidth)
    if latency is not None:
        parse("--latency", latency, parse_seconds)


def check_files(json_file: str | None, plot_file: str | None) -> None:
    """Reject files that could not be written, before anything is measured."""
    for option, path in (("--json", json_file), ("--plot", plot_file)):
        if path is None:
            continue
        check_writable(option, path)
    if plot_file is not None:
        if importlib.util.find_spec("matplotlib") is None:
            raise EasyScaleError("--plot needs matplotlib. Run: pip install 'easyscale[plot]'")
        valid = [".png", ".pdf", ".svg"]
        if os.path.splitext(plot_file)[1].lower() not in valid:
            raise click.UsageError(f"--plot must be a file that ends in one of {valid}. Received: --plot {plot_file}")


def check_writable(option: str, path: str) -> None:
    """Reject a file that could not be written."""
    folder = os.path.dirname(path) or "."
    if not path or not os.path.isdir(folder) or not os.access(folder, os.W_OK) or os.path.isdir(path):
        raise click.UsageError(
            f"{option} must be a file in a folder that exists and may be written. Received: {option} {path}"
        )


def check_least(option: str, value: float | None, least: int) -> None:
    """Reject a number that is too small, infinite or NaN."""
    if value is not None and not least <= value < float("inf"):
        raise click.UsageError(f"{option} must be {least} or more. Received: {option} {value}")


def check_name(option: str, name: str, valid: Sequence[str], also: str = "") -> str:
    """Return a name if it is `valid`; reject any other."""
    if name not in valid:
        raise click.UsageError(unknown(option, name, list(valid), also))
    return name


def check_servers(servers: int, workers: int) -> None:
    """Reject a negative number of servers, and more servers than workers."""
    if not 0 <= servers <= workers:
        raise click.UsageError(
            "the number of servers must be from 0 to that of the workers. "
            f"Received: --servers {servers} and -n {workers}. Try --servers 1"
        )


def check_image_size(model: str, smallest: int | None, image_size: int | None) -> None:
    """Reject images that are too small for a model."""
    if image_size is not None and (smallest or 0) > image_size:
        raise click.UsageError(
            f"--image-size must be {smallest} or more for {model}. Received: --image-size {image_size}"
        )


def check_between_devices(names: Sequence[str]) -> list[str]:
    """Return the exchanges that work between devices of one process; there must be at least one."""
    from easyscale import replication

    valid = ["auto", *replication.devices.available()]
    found = [name for name in names if name in valid]
    if not found:
        check_name("--exchanges", ",".join(names), valid, " with --replication in_graph")
    return found


def parse(option: str, text: str, parser: Callable[[str], T]) -> T:
    """Parse the text of an option with a parser from `quantities`."""
    try:
        return parser(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None


def parse_names(option: str, text: str, valid: Sequence[str]) -> list[str]:
    """Return the distinct names in `text`."""
    return [check_name(option, name, valid) for name in dict.fromkeys(text.split(","))]


def parse_numbers(option: str, text: str) -> list[int]:
    """Return the distinct numbers in `text`, sorted."""
    parts = text.split(",")
    if not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        received = text if len(text) < 80 else f"{text[:80]}..."
        raise click.UsageError(
            f"{option} must be numbers from 1 to 999999999, with commas. Received: {option} {received}"
        )
    return sorted({int(part) for part in parts})


def parse_exchanges(text: str | None, also: Sequence[str] = (), servers: int = 0) -> list[str]:
    """Return the names in `text`, of exchanges or among `also`; if `None`, all exchanges that support `servers`."""
    from easyscale import exchange

    if text is None:
        return [name for name in exchange.available() if not servers or exchange.has_servers(name)]
    names = parse_names("--exchanges", text, [*also, *exchange.with_options()])
    for name in names:
        if servers and not exchange.has_servers(name):
            raise click.UsageError(
                f"--servers needs exchanges that have some, as 'parameter_server'. Received: --exchanges '{name}' and "
                f"--servers {servers}. Measure '{name}' without servers"
            )
    return names
