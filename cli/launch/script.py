"""Shared by commands that start the user's script: checks of the script, and the settings of its ranks."""

import difflib
import glob
import os
import sys

import click

from easyscale import keras_backend
from easyscale.errors import unknown
from easyscale.settings import Devices, Settings, variable

__all__ = ["settings", "start"]

_PYTHONS = ("python", "python3", "py", os.path.basename(sys.executable))


def start(script: str, module: bool = False) -> list[str]:
    """Return Python's arguments that run the script, or the module of this name.

    Raises:
        click.UsageError: If the script cannot be run.
        EasyScaleError: If `KERAS_BACKEND` names a backend that is not installed.
    """
    if os.environ.get("KERAS_BACKEND"):
        keras_backend.check_installed()  # else a script that imports Keras first would fail with Keras's own error
    if module:
        return ["-m", script]
    problem = None
    if not os.path.exists(script):
        problem = "does not exist"
        if script in _PYTHONS:
            problem = "is not one. Give the script itself, without python"
        elif script.isdecimal():
            problem = f"is not one. The number of processes is -n {script}"
        elif near := difflib.get_close_matches(script, glob.glob(os.path.join(os.path.dirname(script), "*.py")), n=1):
            problem += f". Did you mean '{near[0]}'?"
    elif os.path.isdir(script):
        problem = "is a directory"
        if os.path.exists(os.path.join(script, "__main__.py")):
            problem = None  # Python runs such a directory
    elif not os.access(script, os.R_OK):
        problem = "may not be read by this user"
    if problem is not None:
        raise click.UsageError(f"the script must be a file that can be read. Received: '{script}', which {problem}")
    return [script]


def settings(
    said: Settings,
    exchange: str | None,
    replication: str | None = None,
    servers: int = 0,
    devices: Devices | None = None,
    ranks: int = 1,
    compression: str | None = None,
) -> Settings:
    """Return the ranks' settings: those of the flags, else those that the environment has `said`.

    Raises:
        click.UsageError: If an exchange, replication or codec is unknown, or they cannot be combined.
    """
    from easyscale import compression as compressions
    from easyscale import exchange as exchanges
    from easyscale import replication as replications

    in_graph = (replication or said.replication) == "in_graph"
    between_devices = replications.devices.available() if in_graph else []
    # The devices of one process support only some exchanges; processes support all.
    between_processes = [] if in_graph and ranks == 1 else exchanges.with_options()
    valid = ["auto", *sorted({*between_devices, *between_processes})]
    exchange = _known("exchange", exchange, said.exchange, valid)
    replication = _known("replication", replication, said.replication, replications.available())
    compression = _known("compression", compression, said.compression, compressions.names())
    if servers and not exchanges.has_servers(exchange or "auto"):
        raise click.UsageError(
            "servers need an exchange that has some. "
            f"Received: --servers {servers} with the exchange '{exchange}'. Choose --exchange parameter_server"
        )
    return Settings(
        exchange,
        replication,
        compression,
        devices or said.devices,
        servers,
        elastic_batch=said.elastic_batch,
        stall_timeout=said.stall_timeout,
        resume=said.resume,
    )


def _known(name: str, flag: str | None, said: str | None, valid: list[str]) -> str | None:
    """Return the flag's value, else the environment's, if it is valid."""
    value = said if flag is None else flag
    if value is not None and value not in valid:
        raise click.UsageError(unknown(variable(name) if flag is None else f"--{name}", value, valid))
    return value
