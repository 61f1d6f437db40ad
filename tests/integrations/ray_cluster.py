"""A cluster of Ray, of the real one, whose nodes are emulated hosts."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from hosts import Hosts  # noqa: E402

__all__ = ["Cluster"]

ADDRESS = "10.77.0.1:6399"


class Cluster:
    """Two nodes of two CPUs, which say that they have two GPUs. They are gone at the end of the context."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._hosts = Hosts(2).__enter__()
        try:
            self._own = Path(self._folder.name, "own")  # each node has its own files there
            self._own.mkdir()
            for keeper in self._hosts._keepers:
                self._hosts._run(keeper, f"mount -t tmpfs tmpfs {self._own}")
            first = ["--head", "--port=6399", "--include-dashboard=false", "--disable-usage-stats"]
            self._start(0, [*first, f"--temp-dir={self._folder.name}"])
            self._start(1, [f"--address={ADDRESS}"])
            count = "import ray; ray.init(); print(sum(node['Alive'] for node in ray.nodes()))"
            end = time.monotonic() + 120
            while not (told := self.run(["-c", count], timeout=60).stdout).endswith("2\n"):
                if time.monotonic() > end:
                    raise TimeoutError(f"Ray has not started two nodes within 90 s: {told}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._hosts.__exit__()
        self._folder.cleanup()

    def _start(self, number, arguments):
        own = [
            f"--node-ip-address=10.77.0.{number + 1}",
            "--num-cpus=2",
            "--num-gpus=2",
            "--object-store-memory=100000000",
            "--block",
        ]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *own]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._hosts.start(number, command, env={"RAY_AUTH_MODE": "disabled"}, **quiet)

    def start(self, arguments, **options):
        """Start a process of Python on the first node."""
        environment = {"RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": ADDRESS, "TMPDIR": str(self._own)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return self._hosts.start(0, [sys.executable, *arguments], env=environment, **pipes, **options)

    def run(self, arguments, timeout):
        """Run Python on the first node to its end."""
        process = self.start(arguments)
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)
