"""The options of `easyscale launch` as keyword arguments: `--stall-timeout 60` is `stall_timeout=60`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import click

from easyscale.cli import config
from easyscale.cli.commands.launch import command
from easyscale.cli.launch.plan import LaunchPlan
from easyscale.cli.launch.planning import LaunchOptions, plan
from easyscale.errors import unknown

__all__ = ["arguments", "available", "planned"]

_STARTS_NOTHING = ("dry_run", "print_config")
_NUMBER = "np"  # passed as the argument `n` instead


def available() -> dict[str, click.Option]:
    """Return the command's options that can be keyword arguments, by their names with underscores."""
    found = [option for option in command.params if isinstance(option, click.Option) and config.is_long(option)]
    named = {config.key(option).replace("-", "_"): option for option in found}
    return {name: option for name, option in named.items() if name not in (*_STARTS_NOTHING, _NUMBER)}


def arguments(n: int | None, options: Mapping[str, Any], besides: Sequence[str] = ()) -> list[str]:
    """Return these options as command-line arguments. An option that is `None` or `False` is left out.

    Args:
        n: Int. The number of workers; `None` to leave it out.
        options: Dict. The options by name.
        besides: Names of the caller's own options, for error messages. Defaults to none.

    Raises:
        ValueError: If there is no such option.
        TypeError: If an option cannot have the value.

    Example:

    >>> arguments(2, {"exchange": "ring", "elastic": True})
    ['-n', '2', '--exchange', 'ring', '--elastic']
    """
    known = available()
    line = [] if n is None else ["-n", str(n)]
    for name, value in options.items():
        if name not in known:
            message = unknown("option", name, ["n", *besides, *known])
            end = "" if message.endswith("?") else "."
            raise ValueError(f"{message}{end} The function's own arguments come by position")
        option = known[name]
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if value is None:
            continue
        if (rule := config.rule_against(option, value)) is not None:
            raise TypeError(f"`{name}` must be {rule}. Received: {name}={value!r}")
        flag = f"--{config.key(option)}"
        line += ([flag] if value else []) if option.is_flag else [flag, str(value)]
    return line


def planned(line: list[str], module: str) -> LaunchPlan:
    """Return the plan of `easyscale launch` for these options and a module.

    Raises:
        ValueError: If options are wrong or incompatible.
        LaunchError: If several workers are requested and there is no MPI.
    """
    try:
        context = command.make_context("launch", [*line, "-m", module])
        names = {option.name for option in fields(LaunchOptions)}
        return plan(LaunchOptions(**{name: value for name, value in context.params.items() if name in names}))
    except click.UsageError as error:
        raise ValueError(error.format_message()) from None
