"""Limits of this process's control group, as set by containers and batch systems."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["ControlGroup"]

_UNLIMITED = 1 << 60  # bytes; version 1 reports at least this if there is no limit


class ControlGroup:
    """The control group of this process, version 1 or 2. Limits of its parent groups apply as well.

    Args:
        root: String. The file system of control groups. Defaults to Linux's mount point.
        membership: String. The file that names this process's groups. Defaults to Linux's.
    """

    def __init__(self, root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup"):
        self._root = Path(root)
        # Controller -> folder within its hierarchy. Version 2 has one hierarchy, with an empty name.
        self._own: dict[str, str] = {}
        for line in _read(Path(membership)).splitlines():
            _, controllers, path = line.split(":", 2)
            self._own |= dict.fromkeys(controllers.split(","), path.lstrip("/"))

    @property
    def cores(self) -> float | None:
        """The CPU limit in cores; `None` if there is none."""
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
        """The memory limit in bytes; `None` if there is none."""
        return self._least("memory", "memory.max", "memory.limit_in_bytes")

    @property
    def memory_left(self) -> int | None:
        """The bytes left below the memory limit; `None` if there is none."""
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
        """The limit on processes and threads; `None` if there is none."""
        return self._least("pids", "pids.max", "pids.max")

    def _least(self, controller: str, file: str, file_of_version_1: str) -> int | None:
        texts = [_read(folder / file) for folder in self._folders("")]
        texts += [_read(folder / file_of_version_1) for folder in self._folders(controller)]
        return min((int(text) for text in texts if text.isdigit() and int(text) < _UNLIMITED), default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of the group and of its parents; a container sees its own group as the root."""
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
