"""What the control group of this process may have: the limits of containers and of batch systems."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["ControlGroup"]

_UNLIMITED = 1 << 60  # bytes; version 1 says so many where there is no limit


class ControlGroup:
    """The control group of this process, of version 1 or 2. A limit of a group around it holds as well.

    Args:
        root: String. Where the groups are. Defaults to Linux's place.
        membership: String. The file that says which is this process's. Defaults to Linux's.
    """

    def __init__(self, root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup"):
        self._root = Path(root)
        # By controller: the folder inside that of its hierarchy. Version 2 has one hierarchy, without a name.
        self._own: dict[str, str] = {}
        for line in _read(Path(membership)).splitlines():
            _, controllers, path = line.split(":", 2)
            self._own |= dict.fromkeys(controllers.split(","), path.lstrip("/"))

    @property
    def cores(self) -> float | None:
        """How many cores' time it gets at most; `None` if there is no limit."""
        found = []
        for folder in self._folders(""):
            quota, _, period = _read(folder / "cpu.max").partition(" ")
            found += [int(quota) / int(period)] if quota.isdigit() else []
        for folder in self._folders("cpu"):
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            found += [int(quota) / int(period)] if quota.isdigit() and period.isdigit() else []
        return min(found, default=None)

    @property
    def memory(self) -> int | None:
        """How many bytes it gets at most; `None` if there is no limit."""
        return self._least("memory", "memory.max", "memory.limit_in_bytes")

    @property
    def memory_left(self) -> int | None:
        """How many bytes of that are left; `None` if there is no limit."""
        left = []
        for name, limit, used in (
            ("", "memory.max", "memory.current"),
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            for folder in self._folders(name):
                most, now = _read(folder / limit), _read(folder / used)
                if most.isdigit() and now.isdigit() and int(most) < _UNLIMITED:
                    left.append(max(0, int(most) - int(now)))
        return min(left, default=None)

    @property
    def processes(self) -> int | None:
        """How many processes and threads it may have; `None` if there is no limit."""
        return self._least("pids", "pids.max", "pids.max")

    def _least(self, controller: str, file: str, file_of_version_1: str) -> int | None:
        texts = [_read(folder / file) for folder in self._folders("")]
        texts += [_read(folder / file_of_version_1) for folder in self._folders(controller)]
        return min((int(text) for text in texts if text.isdigit() and int(text) < _UNLIMITED), default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of the group and of those around it; a container sees its own as the outermost one."""
        if controller not in self._own:
            return
        top, inside = self._root / controller, Path(self._own[controller])
        for folder in [top / inside, *(top / around for around in inside.parents)]:
            if folder.is_dir():
                yield folder


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
