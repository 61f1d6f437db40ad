"""The findings as an anonymous text for a bug report."""

import getpass
import os
import re
from collections.abc import Mapping, Sequence

from easyscale.cli.doctor.finding import Finding

__all__ = ["anonymous", "markdown"]


def markdown(findings: Sequence[Finding], versions: Mapping[str, Mapping[str, str]]) -> str:
    """Format findings and versions as Markdown.

    Args:
        findings: The `Finding`s.
        versions: For each host, the version of each package.
    """
    lines = ["## easyscale doctor", ""]
    lines += [f"- {_mark(found)}{found.where}: {found.told}" for found in findings]
    lines += ["", "| | " + " | ".join(versions) + " |", "|---" * (1 + len(versions)) + "|"]
    for package in dict.fromkeys(name for own in versions.values() for name in own):
        lines.append(f"| {package} | " + " | ".join(own.get(package, "") for own in versions.values()) + " |")
    return anonymous("\n".join(lines))


def _mark(finding: Finding) -> str:
    return "" if finding.grade == "ok" else f"**{finding.grade}** "


def anonymous(text: str, home: str | None = None, user: str | None = None) -> str:
    """Remove home folders and the user's name from a text.

    Args:
        text: String.
        home: String. The user's home folder. Defaults to `None`: that of this user.
        user: String. The user's name. Defaults to `None`: that of this user.

    Example:

    >>> anonymous("/home/jo/env/bin/python, jo@gpu1, /home/ann/x", "/home/jo", "jo")
    '~/env/bin/python, <user>@gpu1, ~/x'
    """
    home = os.path.expanduser("~") if home is None else home
    user = _user() if user is None else user
    if home.strip("/"):
        text = re.sub(rf"{re.escape(home.rstrip('/'))}(?=[/\s,;:'`]|$)", "~", text)
    text = re.sub(r"/(?:home|Users)/[^/\s,;:'`]+", "~", text)
    return re.sub(rf"\b{re.escape(user)}\b", "<user>", text) if user else text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a passwd entry, as in containers
        return ""
