"""`easyscale bench`: its benchmarks are the modules of this folder, each with a `command`."""

import click

from easyscale.cli.group import Folder

__all__ = ["command"]


@click.group(cls=Folder, package=__name__)
def command() -> None:
    """Measure on this machine what EasyScale does."""
