"""Options from a file: `easyscale launch --config easyscale.toml`. The command line takes precedence over the file.

[launch]
np = 4
exchange = "ring"
script = "train.py"
arguments = ["--epochs", "3"]
"""

import difflib
import json
import sys
from collections.abc import Mapping
from typing import Any

import click

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["is_long", "key", "option", "rule_against", "written"]

_OWN = ("config", "print_config", "help")  # options that a file cannot set


def option(function: Any) -> Any:
    """Add the option `--config`, and the flag `--print-config`, which the command itself handles."""
    read = click.option(
        "--config", metavar="FILE", is_eager=True, expose_value=False, callback=_read, type=str,
        help="Take options, script and arguments from a TOML file; those of the command line win.",
    )  # fmt: skip
    shows = click.option("--print-config", is_flag=True, help="Print the options as such a file, and end.")
    return read(shows(function))


def written(context: click.Context) -> str:
    """Return a config file with the options of `context`, from its command line and config file."""
    lines = [f"[{context.info_name}]"]
    for parameter in context.command.get_params(context):
        value = context.params.get(parameter.name or "")
        if parameter.name in _OWN or value in (None, (), False) or value == parameter.default:
            continue
        lines.append(f"{key(parameter)} = {_in_toml(value)}")
    return "\n".join(lines)


def _in_toml(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(
            f"--print-config is for arguments in UTF-8: TOML has no other bytes. Received: {value!r}. Leave them out"
        ) from None
    return text


def key(parameter: click.Parameter) -> str:
    """Return the name of an option or argument in the file: its longest form, without leading dashes."""
    return max(parameter.opts, key=len).lstrip("-")


def is_long(option: click.Option) -> bool:
    """Return whether an option has a long form, e.g. `--hosts`."""
    return any(name.startswith("--") for name in option.opts)


def _read(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.UsageError(f"--config must be a TOML file. Received: '{path}' ({reason})") from None
    name = str(context.info_name)
    _check_known(found, [name], f"a table of {path}")
    table = found.get(name, {})
    if not isinstance(table, dict):
        raise click.UsageError(f"'{name}' in {path} must be a table. Received: {table!r}. Write [{name}] above it")
    parameters = {key(one): one for one in context.command.get_params(context) if one.name not in _OWN}
    _check_known(table, list(parameters), f"an option in {path}")
    said = {str(parameters[name].name): _checked(parameters[name], name, value, path) for name, value in table.items()}
    context.default_map = {**(context.default_map or {}), **said}


def _check_known(found: Mapping[str, Any], valid: list[str], what: str) -> None:
    for name in found:
        if name not in valid:
            near = difflib.get_close_matches(name.replace("_", "-"), valid, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"Use one of {valid}"
            raise click.UsageError(f"{what} must be one that there is. Received: '{name}'. {hint}")


def _checked(parameter: click.Parameter, name: str, value: Any, path: str) -> Any:
    """Convert a value from the file for click; raise `click.UsageError` if it has the wrong type."""
    if (rule := rule_against(parameter, value)) is not None:
        raise click.UsageError(f"'{name}' in {path} must be {rule}. Received: {value!r}")
    return [str(one) for one in value] if isinstance(value, list) else value


def rule_against(parameter: click.Parameter, value: Any) -> str | None:
    """Return the rule that this value of an option or argument breaks; `None` if it is valid."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        is_right, rule = isinstance(value, bool), "true or false"
    elif parameter.nargs == -1:
        is_right, rule = isinstance(value, list), "a list of texts"
    elif isinstance(parameter.type, click.types.IntParamType) or hasattr(parameter.type, "rule"):
        is_right = isinstance(value, (str, int)) and not isinstance(value, bool)
        rule = getattr(parameter.type, "rule", "a whole number")
    else:
        is_right = isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""
        rule = "a text or a number"
    return None if is_right else rule
