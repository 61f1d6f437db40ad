"""Checks that each host can be reached, examines it, and compares versions across hosts."""

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from easyscale import run_module
from easyscale.cli.doctor import host as one_host
from easyscale.cli.doctor.finding import Finding
from easyscale.cli.doctor.host import Host
from easyscale.cli.doctor.started import launch
from easyscale.cli.launch import hosts as forms

__all__ = ["compare", "examine"]

_AT_A_TIME = 16  # hosts


def examine(hosts: Sequence[forms.Host], timeout: float) -> dict[str, Host]:
    """Examine each host; return the results by host name. A host that cannot be reached has no versions.

    Args:
        hosts: The hosts, each with its number of ranks.
        timeout: Float. Seconds to wait for each host.
    """
    with ThreadPoolExecutor(min(_AT_A_TIME, len(hosts))) as pool:
        return dict(zip([host.name for host in hosts], pool.map(lambda host: _ask(host, timeout), hosts), strict=True))


def _ask(host: forms.Host, timeout: float) -> Host:
    program = run_module.command(one_host.__name__, str(host.slots))[1:]
    done = launch(["-n", "1", "--hosts", f"{host.name}:1", "--stall-timeout", "0", *program], timeout)
    if done.reason or not done.messages:
        return Host([_unreached(host.name, done.reason)], {})
    found = one_host.decode(done.messages[-1], host.name)
    return found._replace(findings=[Finding("reached", "yes", host=host.name), *found.findings])


def _unreached(name: str, reason: str) -> Finding:
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:  # the likely cause, unless a scheduler resolves host names itself
        text, cure = f"its name has no address ({error.strerror})", "Write it as in /etc/hosts or DNS, or its address"
        return Finding("reached", text, "fails", cure, name)
    cure = f"See that `ssh {name} true` works and asks for nothing, that hosts may open connections to each "
    cure += "other on all ports, and that EasyScale is installed there in the same place"
    return Finding("reached", reason.rstrip(".") or "it has not answered", "fails", cure, name)


def compare(versions: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Compare the versions on each host with those on the first.

    Example:

    >>> compare({"a": {"keras": "3.15.0"}, "b": {"keras": "3.12.0"}})[0].text
    'keras must be the same on all hosts. Received: 3.15.0 on a, 3.12.0 on b'
    """
    (first, known), *others = versions.items()
    found = []
    for name, own in others:
        for package in dict.fromkeys([*known, *own]):
            here, there = known.get(package, "none"), own.get(package, "none")
            if here != there:
                text = f"{package} must be the same on all hosts. Received: {here} on {first}, {there} on {name}"
                cure = "Use one environment on all hosts, as in a shared folder or an image"
                if package not in ("Python", "MPI"):
                    cure = f"Run on {name}: pip install {package}=={here}"
                found.append(Finding("versions", text, "fails", cure))
    return found or [Finding("versions", "the same on all hosts")]
