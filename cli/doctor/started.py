"""The launcher as a subprocess with a time-out, because what it starts may hang on the network."""

import json
import os
import re
import signal
import subprocess
from typing import Any, NamedTuple

from easyscale import run_module
from easyscale.settings import without

__all__ = ["Started", "launch", "reason"]

_PATIENCE = 15.0  # seconds for the launcher to end its job


class Started(NamedTuple):
    """The outcome of a launch.

    Attributes:
        messages: List of the JSON objects that the chief has printed, one per line.
        reason: String. Why it failed, in one line; `""` if it did not.
    """

    messages: list[dict[str, Any]]
    reason: str


def launch(arguments: list[str], timeout: float) -> Started:
    """Run `easyscale launch` with these arguments and a time-out in seconds.

    The user's EasyScale environment variables are not passed on.
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
        start_new_session=True,  # Ctrl-C reaches it only through this process
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
    """Return the line that best explains why a job failed: an error of a rank, else the launcher's message.

    Example:

    >>> reason(["[1] ImportError: no libfoo.so", "easyscale: rank 1 on a has ended with exit code 1"])
    'ImportError: no libfoo.so'
    """
    lines = [re.sub(r"^\[[^\]]*\] ", "", line).strip() for line in lines if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception)\b: ", line)]
    launcher = [line.removeprefix("easyscale: ") for line in lines if line.startswith("easyscale: ")]
    return (errors or launcher or lines or ["no word of why"])[-1]
