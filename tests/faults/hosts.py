"""Emulated hosts: each has a network, a name, and shared memory of its own; a switch joins them. Needs root on Linux.

with Hosts(2) as hosts:
    hosts.start(0, ["easyscale", "launch", "-n", "2", "--hosts", "node0:1,node1:1", "train.py"])
    hosts.cut(1)
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

__all__ = ["Hosts"]

_NAMESPACES = ["--net", "--uts", "--ipc", "--mount"]


class Hosts:
    """Some hosts, as namespaces that a sleeping process keeps. They are gone at the end of the context.

    Args:
        count: Int. Their names are `node0`, `node1`, ...

    Attributes:
        names: List of the names.
    """

    def __init__(self, count: int):
        self.names = [f"node{number}" for number in range(count)]
        self._keepers: list[subprocess.Popen] = []
        self._folder = Path(tempfile.mkdtemp())

    @staticmethod
    def are_possible() -> bool:
        """Return whether this user, on this system, may have such hosts."""
        programs = all(shutil.which(program) for program in ("ip", "unshare", "nsenter"))
        return programs and subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True).returncode == 0

    def __enter__(self) -> "Hosts":
        try:
            self._switch = self._keep(["--net"])
            self._run(self._switch, "ip link add name switch type bridge && ip link set switch up", ["--net"])
            table = self._folder / "hosts"
            lines = [f"10.77.0.{number + 1} {name}\n" for number, name in enumerate(self.names)]
            table.write_text("127.0.0.1 localhost\n" + "".join(lines))
            for number, name in enumerate(self.names):
                keeper = self._keep(_NAMESPACES)
                self._keepers.append(keeper)
                link = f"ip link add port{number} type veth peer name eth0 netns {keeper.pid}"
                port = f"ip link set port{number} master switch && ip link set port{number} up"
                self._run(self._switch, f"{link} && {port}", ["--net"])
                self._run(
                    keeper,
                    f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && mount --bind {table} /etc/hosts && "
                    f"ip link set lo up && ip address add 10.77.0.{number + 1}/24 dev eth0 && ip link set eth0 up",
                )
            agent = self._folder / "agent"  # in the place of ssh
            cases = "".join(
                f"{name}) at={keeper.pid};;\n" for name, keeper in zip(self.names, self._keepers, strict=True)
            )
            enter = f'nsenter --target $at {" ".join(_NAMESPACES)} --wd="$PWD" sh -c "$*" || exec sleep 300'
            agent.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\nshift\n{enter}\n')
            agent.chmod(0o755)
            self.environment = {"PRTE_MCA_plm_ssh_agent": str(agent)}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [pid for keeper in self._keepers for pid in self._processes_of(keeper)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for keeper in [*self._keepers, self._switch]:
            keeper.kill()
            keeper.wait()
        shutil.rmtree(self._folder)

    def start(self, number: int, command: list[str], **options: object) -> subprocess.Popen:
        """Start a command on host `number`; takes what `subprocess.Popen` takes."""
        enter = ["nsenter", "--target", str(self._keepers[number].pid), *_NAMESPACES, f"--wd={os.getcwd()}"]
        environment = {**os.environ, **self.environment, **options.pop("env", {})}
        return subprocess.Popen([*enter, *command], env=environment, **options)

    def cut(self, number: int) -> None:
        """Cut the link of host `number`."""
        self._run(self._switch, f"ip link set port{number} down", ["--net"])

    def lose(self, number: int) -> None:
        """Let host `number` be gone: nothing of it is heard any more, and its processes end."""
        self.cut(number)
        for pid in self.processes(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, number: int) -> list[int]:
        """Return the numbers of the processes on host `number`."""
        keeper = self._keepers[number]
        return [pid for pid in self._processes_of(keeper) if pid != keeper.pid]

    def shared_memory(self, number: int) -> list[str]:
        """Return what is in the shared memory of host `number`."""
        return os.listdir(f"/proc/{self._keepers[number].pid}/root/dev/shm")

    @staticmethod
    def _processes_of(keeper: subprocess.Popen) -> list[int]:
        own, found = os.readlink(f"/proc/{keeper.pid}/ns/net"), []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns" / "net") == own:
                    found.append(int(folder.name))
        return found

    @staticmethod
    def _keep(namespaces: list[str]) -> subprocess.Popen:
        before = os.readlink("/proc/self/ns/net")
        keeper = subprocess.Popen(["unshare", *namespaces, "sleep", "infinity"])
        end = time.monotonic() + 5
        while os.readlink(f"/proc/{keeper.pid}/ns/net") == before or _name(keeper) != "sleep":
            if time.monotonic() > end:
                raise TimeoutError("`unshare` has not made its namespaces within 5 s")
            time.sleep(0.01)
        return keeper

    @staticmethod
    def _run(keeper: subprocess.Popen, command: str, namespaces: list[str] = _NAMESPACES) -> None:
        enter = ["nsenter", "--target", str(keeper.pid), *namespaces]
        done = subprocess.run([*enter, "sh", "-c", command], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{shlex.quote(command)}: {done.stderr.strip()}")


def _name(process: subprocess.Popen) -> str:
    return Path(f"/proc/{process.pid}/comm").read_text().strip()
