"""`easyscale bench`: each module of this package is a benchmark, and defines `command`."""

import click

from easyscale.cli.group import Folder

__all__ = ["command"]


@click.group(cls=Folder, package=__name__)
def command() -> None:
    """Measure on this machine what EasyScale does."""
