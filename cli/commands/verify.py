"""`easyscale verify`: runs a script on one process and on several, and compares their first steps."""

import re
import sys

import click

from easyscale.cli.group import Command
from easyscale.cli.launch import script as scripts
from easyscale.settings import Settings

__all__ = ["command"]


class _Verify(Command):
    """A command that also accepts its options directly after the script."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        before, rest = self._split(context, arguments)
        if rest and not rest[0].startswith("-"):  # else click reports the error
            after, own = self._split(context, rest[1:])
            if own[:1] == ["--"]:
                own = own[1:]
            arguments = [*before, *after, rest[0], *own]
        return super().parse_args(context, arguments)

    def _split(self, context: click.Context, arguments: list[str]) -> tuple[list[str], list[str]]:
        """Split the arguments into leading options and the rest."""
        options = {name: option for option in self.params if isinstance(option, click.Option) for name in option.opts}
        index = 0
        while index < len(arguments):
            name, has_value, _ = arguments[index].partition("=")
            is_whole = bool(has_value)
            if re.fullmatch(r"-n\d+", name):
                name, is_whole = "-n", True
            if name not in options:
                break
            index += 1 if is_whole or options[name].is_flag else 2
            if index > len(arguments):
                raise click.BadOptionUsage(name, f"Option '{name}' requires an argument.", context)
        return arguments[:index], arguments[index:]


@click.command(cls=_Verify, context_settings={"allow_interspersed_args": False})
@click.option(
    "-n", "-np", "--np", "ranks", type=int, default=2, show_default=True, metavar="N", help="How many processes."
)
@click.option(
    "--steps", type=int, default=5, show_default=True, metavar="K", help="How many steps of each fit() to compare."
)
@click.option(
    "--tolerance", type=float, metavar="T",
    help="What weights may differ by, at most. Defaults to 1e-8 if they are float64, else to 1e-5.",
)  # fmt: skip
@click.option("--exchange", metavar="NAME", help="How gradients are exchanged. The script's own choice wins.")
@click.option("--verbose", is_flag=True, help="Show what the script writes.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    ranks: int,
    steps: int,
    tolerance: float | None,
    exchange: str | None,
    verbose: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Check that several processes take the steps of one.

    SCRIPT runs on one process, then on N. Weights and metrics are compared after each of the first K steps of each of
    its first 3 `fit()`s, or of a training loop of its own, which then ends.
    The exit code is 0 if they are equal within the tolerance; else 1, with the first difference or why there is none to
    tell.

    Options stand before SCRIPT or directly after it. The script's own arguments begin with the first that is none of
    these options, or after `--`:

    \b
      easyscale verify train.py -n 4 --epochs 3
      easyscale verify train.py -n 4 -- --steps 100

    What is random is switched off: shuffling, dropout and other layers that draw random numbers. So are callbacks that
    write files, and `model.save()`. Everything else the script does as always, up to the last of these steps, or to its
    end. It computes in float64, if it can, so that rounding does not look like a mistake. For the comparison
    each weight takes 16 bytes a step in the folder for temporary files.
    """
    for problem, rule, received in (
        (ranks < 2, "the number of processes must be 2 or more", f"-n {ranks}"),
        (steps < 1, "the number of steps must be 1 or more", f"--steps {steps}"),
        (tolerance is not None and not tolerance >= 0, "the tolerance must be 0 or more", f"--tolerance {tolerance}"),
    ):
        if problem:
            raise click.UsageError(f"{rule}. Received: {received}")
    settings = scripts.settings(Settings.read(), exchange)
    start = [*scripts.start(script), *arguments]

    from easyscale.cli.verify import runs

    try:
        verdict = runs.verify(start, ranks, steps, tolerance, verbose, settings)
    except runs.ScriptError as error:
        for line in [] if verbose else error.errors:
            click.echo(line, err=True)
        raise
    head = f"equal: {ranks} processes take" if verdict.equal else f"different: {ranks} processes do not take"
    click.echo("\n  ".join([f"{head} the steps of one in {script}", *verdict.lines]))
    sys.exit(not verdict.equal)
