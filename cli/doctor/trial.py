"""A trial run: ranks measure the links between them, then train, which reveals any other problem."""

from collections.abc import Sequence
from typing import Any

from easyscale import run_module
from easyscale.bench import trial
from easyscale.cli.doctor.finding import Finding
from easyscale.cli.doctor.started import launch
from easyscale.quantities import micros_text

__all__ = ["examine"]

_SLOW = 100e6  # bytes per second between hosts; below this, most models' gradients take longer than their steps
_OPEN = "See that hosts may open connections to each other on all ports, over the network that MPI takes"
_APART = 0.5  # seconds between two clocks


def examine(hosts: Sequence[str], timeout: float) -> list[Finding]:
    """Run a trial with one rank on each host; return its findings.

    Args:
        hosts: Names. If empty, two ranks run on this host.
        timeout: Float. Seconds that the trial may take.
    """
    places = ["--hosts", ",".join(f"{name}:1" for name in hosts)] if hosts else []
    arguments = ["-n", str(len(hosts) or 2), *places, "--stall-timeout", "0", *run_module.command(trial.__name__)[1:]]
    done = launch(arguments, timeout)
    said: dict[str, Any] = {name: value for message in done.messages for name, value in message.items()}
    names = list(hosts) or ["rank 0", "rank 1"]
    found = _clocks(said.get("clocks", []), names) if hosts else []
    for first, second, latency, bandwidth in said.get("links", []):
        found.append(_link((names[first], names[second]), latency, bandwidth, bool(hosts)))
    ranks = f"{len(names)} ranks"
    if "trained" in said and not done.reason:
        return [*found, Finding("training", f"{ranks} have trained with {said['trained']}, over {said['mpi']}")]
    if "links" in said:
        come, cure = "they have met, and not trained", ""
    elif "hosts" in said:
        come, cure = "they have met, and cannot send each other long messages", _OPEN
    else:
        come, cure = "they have not met", _OPEN if hosts else ""
    text = f"{ranks} must train together. Received: {come}: {done.reason or 'they have ended too early'}"
    return [*found, Finding("training", text, "fails", cure)]


def _clocks(offsets: Sequence[float], names: Sequence[str]) -> list[Finding]:
    found = []
    for name, offset in list(zip(names, offsets, strict=False))[1:]:
        text = f"{abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} that of {names[0]}"
        is_apart = abs(offset) > _APART
        cure = "Run an NTP client on each host: what hosts write, as checkpoints, has its time" if is_apart else ""
        found.append(Finding("clock", text, "warning" if is_apart else "ok", cure, name))
    return found


def _link(ends: Sequence[str], latency: float, bandwidth: float, is_network: bool) -> Finding:
    speed = f"latency {micros_text(latency)} us, bandwidth {bandwidth / 1e6:,.0f} MB/s"
    text = f"{' to '.join(ends)}: {speed}"
    if not is_network or bandwidth >= _SLOW:
        return Finding("network" if is_network else "messages", text)
    cure = "Send less, by `compression`, or less often, by `update`: see docs/slow_networks.md"
    return Finding("network", text, "warning", cure)
