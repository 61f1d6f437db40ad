"""Command groups whose commands are the modules of a package, imported on demand."""

import difflib
import importlib
import pkgutil
from typing import Any

import click

__all__ = ["Command", "Folder"]

_SYNONYMS = {"run": "launch", "start": "launch", "check": "doctor"}  # names of these commands in other tools


class Command(click.Command):
    """A click command whose usage errors always carry its context."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        try:
            return super().parse_args(context, arguments)
        except click.UsageError as error:
            error.ctx = error.ctx or context
            raise


class Folder(Command, click.Group):
    """A group with one command per module of a package: the click command that the module calls `command`.

    Without arguments, it prints its help.

    Args:
        package: String. Name of the package.
    """

    def __init__(self, package: str, **arguments: Any):
        super().__init__(no_args_is_help=False, **arguments)
        self._package = package

    def list_commands(self, context: click.Context) -> list[str]:
        path = importlib.import_module(self._package).__path__
        return sorted(module.name for module in pkgutil.iter_modules(path))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(context):
            return None
        return importlib.import_module(f"{self._package}.{name}").command

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        return super().parse_args(context, arguments or ["--help"])

    def resolve_command(self, context: click.Context, arguments: list[str]) -> tuple:
        name, valid = arguments[0], self.list_commands(context)
        if name not in valid and not name.startswith("-"):
            near = [_SYNONYMS[name]] if _SYNONYMS.get(name) in valid else difflib.get_close_matches(name, valid, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"the command must be one of {valid}. Received: '{name}'.{hint}", context)
        return super().resolve_command(context, arguments)
