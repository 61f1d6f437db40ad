"""The page of the command line: every command of `easyscale`, as click knows it."""

import inspect
from collections.abc import Iterator

import click

from easyscale.cli.main import main

__all__ = ["page"]


def page() -> str:
    """Return the page, in Markdown."""
    lines = [
        "# Command line",
        "",
        "Each command says the same with `--help`. An error is one line; the exit code is 2 for wrong usage, and 1 for "
        "the rest, but for [`easyscale launch`](../faults.md#exit-codes), whose exit code is the script's.",
        "",
    ]
    for context in _commands(click.Context(main, info_name="easyscale")):
        lines += _section(context)
    return "\n".join(lines)


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Yield a context of each command that does something, and of no group."""
    if not isinstance(context.command, click.Group):
        yield context
        return
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        if command is not None:
            yield from _commands(click.Context(command, info_name=name, parent=context))


def _section(context: click.Context) -> list[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {context.command_path}", "", "```text", f"{context.command_path} {usage}", "```", ""]
    lines += [inspect.cleandoc(command.help or ""), "", "| option | meaning |", "|---|---|"]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            names, meaning = (" ".join(text.split()) for text in record)
            meaning = meaning.replace("|", "\\|")
            lines.append(f"| `{names}` | {meaning} |")
    return [*lines, ""]
