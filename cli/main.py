"""The entry point of `easyscale`. An error is one line; the exit code is 2 for usage errors and 1 for all others."""

import difflib
import errno
import os
import signal
import sys
from typing import Any

import click

import easyscale
from easyscale.cli.group import Folder
from easyscale.errors import EasyScaleError

__all__ = ["main"]


class Main(Folder):
    """The top-level group. Prints errors of the user or the system as one line, whatever raised them."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **options: Any) -> Any:
        options["standalone_mode"] = False
        if not standalone_mode:
            return super().main(*arguments, **options)
        _open_standard_files()
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as set while the command was loading
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            code = super().main(*arguments, **options) or 0
            sys.stdout.flush()
            sys.exit(code)
        except BrokenPipeError:  # the reader of our output is gone
            _drop_output()
            sys.exit(128 + signal.SIGPIPE)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
                raise
            _drop_output()
            _fail(None, f"the output must have a place. Received: {error.strerror}", 1)
        except click.UsageError as error:
            _fail(error.ctx, _usage(error), 2)
        except click.ClickException as error:
            _fail(None, error.format_message(), 1)
        except (EasyScaleError, ValueError) as error:
            _fail(None, str(error), 1)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)


def _open_standard_files() -> None:
    """Open standard files that the caller has closed (`>&-`): another file would take their numbers."""
    for file, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(file)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != file:
                os.dup2(null, file)
                os.close(null)
            os.set_inheritable(file, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(file, "w" if file else "r", closefd=False))


def _drop_output(file: int = 1) -> None:
    """Discard what Python would still write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), file)


def _usage(error: click.UsageError) -> str:
    """Return click's message about wrong usage, in the style of all other errors."""
    help_line = f"See `{error.ctx.command_path} --help`" if error.ctx else ""
    if isinstance(error, click.NoSuchOption) and error.ctx:
        valid = [name for option in error.ctx.command.get_params(error.ctx) for name in option.opts if name[0] == "-"]
        near = difflib.get_close_matches(error.option_name, valid, n=1, cutoff=0.5)
        hint = f"Did you mean '{near[0]}'?" if near and error.option_name.startswith("--") else help_line
        return f"there is no option '{error.option_name}'. {hint}"
    if isinstance(error, click.MissingParameter):
        return f"{error.format_message()} {help_line}"
    received = error.message.rpartition(" is not ")[0]
    if isinstance(error, click.BadParameter) and received and error.param and (rule := _rule_of(error.param)):
        return f"{error.param.opts[0]} must be {rule}. Received: {received}. {help_line}"
    extra = error.message.removeprefix("Got unexpected extra argument")
    if extra != error.message:
        return f"there must be no such argument. Received: {extra.strip('s ()')}. {help_line}"
    return error.format_message()


def _rule_of(parameter: click.Parameter) -> str:
    """Return the rule for the number that an option takes; `""` if it takes none."""
    kind = parameter.type
    if not isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
        return ""
    what = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    above = "above" if getattr(kind, "min_open", False) else "from"
    return what + (f" {above} {least:g}" if least is not None else "") + (f" to {most:g}" if most is not None else "")


def _fail(context: click.Context | None, message: str, code: int) -> None:
    path = context.command_path if context is not None else "easyscale"
    try:
        click.echo(f"{path}: {' '.join(message.split())}", err=True)
    except OSError:
        _drop_output(2)
    sys.exit(code)


@click.group(
    "easyscale", cls=Main, package="easyscale.cli.commands", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(easyscale.__version__, prog_name="easyscale", message="%(prog)s %(version)s")
def main() -> None:
    """One Keras fit() on several processes; you pick how gradients are exchanged."""
