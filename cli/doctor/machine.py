"""Checks of a machine's resources: cores, memory, /dev/shm, open files, threads, the clock."""

import ctypes
import datetime
import os
import time

import psutil

import easyscale
from easyscale.cli.doctor.finding import Finding
from easyscale.cli.launch import limits, shared_memory
from easyscale.cli.launch.containers import ControlGroup
from easyscale.errors import LaunchError

__all__ = ["examine"]

_MEMORY_EACH = 500e6  # bytes of a rank that has loaded TensorFlow and trains a small model
_THREADS_EACH = 64  # of such a rank, with a margin
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_DAY = 86400


def examine(processes: int, group: ControlGroup | None = None, folder: str = shared_memory.FOLDER) -> list[Finding]:
    """Check this machine's resources for a number of ranks.

    Args:
        processes: Int. The number of ranks.
        group: `ControlGroup`. Defaults to `None`: that of this process.
        folder: String. Folder of shared memory. Defaults to `/dev/shm`.
    """
    group = group or ControlGroup()
    return [
        _cores(group),
        _memory(processes, group),
        _shared_memory(processes, folder),
        _files(processes),
        _threads(processes, group),
        _clock(),
    ]


def _cores(group: ControlGroup) -> Finding:
    cores, quota = sorted(os.sched_getaffinity(0)), group.cores
    text = f"{len(cores)} of {os.cpu_count()} may be used ({_ranges(cores)})"
    if quota is None or quota >= len(cores):
        return Finding("cores", text)
    ranks = max(1, int(quota))
    text += f", and the container has the time of {quota:g}"
    return Finding("cores", text, "warning", f"Start no more ranks than that: easyscale launch -n {ranks}")


def _memory(processes: int, group: ControlGroup) -> Finding:
    machine, left = psutil.virtual_memory(), group.memory_left
    free = machine.available if left is None else min(machine.available, left)
    total = machine.total if group.memory is None else min(machine.total, group.memory)
    text = f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB" + (", which the container has" if group.memory else "")
    need = processes * _MEMORY_EACH
    if free >= need:
        return Finding("memory", text)
    cure = f"Start fewer ranks, or get more memory: {processes} ranks of a small model take {need / 1e9:.1f} GB"
    return Finding("memory", text, "warning", cure)


def _shared_memory(processes: int, folder: str) -> Finding:
    if not os.access(folder, os.W_OK):
        text, cure = f"{folder} is not there, or may not be written", "Mount a tmpfs there"
        return Finding("/dev/shm", text, "warning", f"{cure}: ranks of one host share memory in it")
    try:
        shared_memory.check(processes, folder)
    except LaunchError as error:
        return Finding("/dev/shm", str(error), "fails")
    advice = shared_memory.advice(processes, folder)
    return Finding("/dev/shm", advice or shared_memory.room(folder), "warning" if advice else "ok")


def _files(processes: int) -> Finding:
    try:
        limits.check(processes)
    except LaunchError as error:
        return Finding("open files", str(error), "fails")
    advice = limits.advice()
    return Finding("open files", advice or f"{limits.most_files()} may be open", "warning" if advice else "ok")


def _threads(processes: int, group: ControlGroup) -> Finding:
    most, need = group.processes, processes * _THREADS_EACH
    if most is None:
        return Finding("container", "no limit of its own for processes and threads")
    text = f"the container may have {most} processes and threads"
    cure = f"Let it have more, as by `docker run --pids-limit={max(4096, need)}`: {processes} ranks may have {need}"
    return Finding("container", text) if most >= need else Finding("container", text, "warning", cure)


def _clock() -> Finding:
    now = time.time()
    text = f"{datetime.datetime.fromtimestamp(now, datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    if now < os.stat(easyscale.__file__).st_mtime - _DAY:
        cure = "Set it: timedatectl set-ntp true"
        return Finding("clock", f"{text}, before EasyScale was installed", "warning", cure)
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    told = {_UNSYNCHRONISED: "not synchronised, as the system says", -1: "the system does not say if synchronised"}
    return Finding("clock", f"{text}, {told.get(state, 'synchronised')}")


def _ranges(numbers: list[int]) -> str:
    """Format sorted numbers as ranges, as Linux does.

    Example:

    >>> _ranges([0, 1, 2, 5])
    '0-2,5'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
