"""The launcher as a process of its own, that has its time: what it starts may hang on a network."""

import json
import os
import re
import signal
import subprocess
from typing import Any, NamedTuple

from easyscale import run_module
from easyscale.settings import without

__all__ = ["Started", "launch", "reason"]

_PATIENCE = 15.0  # seconds in which the launcher ends what it has started


class Started(NamedTuple):
    """What has become of it.

    Attributes:
        messages: List of the JSON objects that the chief has written, one a line.
        reason: String. Why it has failed, in one line; `""` if it has not.
    """

    messages: list[dict[str, Any]]
    reason: str


def launch(arguments: list[str], timeout: float) -> Started:
    """Return what becomes of `easyscale launch` with these arguments, within so many seconds.

    What users set by environment variables of EasyScale's is left out.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    process = subprocess.Popen(
        run_module.command("easyscale", "launch", *arguments),
        env={**without(os.environ), **quiet},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # a Ctrl-C reaches it through us only
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            output, errors = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        return Started(_messages(output), f"no answer within {timeout:g} s")
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE)
        raise
    return Started(_messages(output), reason(errors.splitlines()) if process.returncode else "")


def _messages(output: str) -> list[dict[str, Any]]:
    found = []
    for line in output.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            found.append(message)
    return found


def reason(lines: list[str]) -> str:
    """Return the line that says best why a job has failed: an error of a rank, else what the launcher says.

    Example:

    >>> reason(["[1] ImportError: no libfoo.so", "easyscale: rank 1 on a has ended with exit code 1"])
    'ImportError: no libfoo.so'
    """
    lines = [re.sub(r"^\[[^\]]*\] ", "", line).strip() for line in lines if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception)\b: ", line)]
    launcher = [line.removeprefix("easyscale: ") for line in lines if line.startswith("easyscale: ")]
    return (errors or launcher or lines or ["no word of why"])[-1]
