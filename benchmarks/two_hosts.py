"""A script on two emulated hosts of one process each: a link of a rate in each direction, a delay of its queue only."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Hosts", "run", "shaped"]

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "faults"))

from hosts import Hosts  # noqa: E402


@contextlib.contextmanager
def shaped(rate: str) -> Iterator[Hosts]:
    """Yield two hosts whose links have this rate, as `tc` takes it, such as `"1gbit"`.

    Needs root on Linux, iproute2 and util-linux.
    """
    with Hosts(2) as hosts:
        for number in range(2):
            # A burst holds what the kernel hands to a link at once, else that is cut into single frames.
            shape = f"tc qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 50ms".split()
            assert hosts.start(number, shape).wait() == 0
        yield hosts


def run(script: str, arguments: list[str], rate: str, onednn: str) -> list[str]:
    """Return the lines that a script writes, which `easyscale launch` starts on both hosts.

    Args:
        script: String. The path of the script.
        arguments: List of strings. Its arguments.
        rate: String. Of a link; see `shaped`.
        onednn: String. As `easyscale launch --onednn` takes it.
    """
    launch = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", "2", "--hosts", "node0:1,node1:1"]
    with shaped(rate) as hosts:
        job = hosts.start(0, [*launch, "--onednn", onednn, script, *arguments], stdout=subprocess.PIPE, text=True)
        said = job.communicate()[0].splitlines()
        assert job.returncode == 0, said
    return said
