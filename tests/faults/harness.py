"""Starts a job that fails, and finds out what became of it: how it ended, how soon, and what it left behind."""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

__all__ = ["Outcome", "launch"]

TRAINING = Path(__file__).with_name("training.py")
SHARED_MEMORY = Path("/dev/shm")


class Outcome(NamedTuple):
    """What became of a job.

    Attributes:
        code: Int. Its exit code; `None` if it hung.
        seconds: Float. From the fault to the end of all processes; `nan` without a fault.
        report: Float. Seconds from the fault to the report of ranks that stand still; `nan` if there was none.
        orphans: List of command lines of processes that were there 2 s after the end.
        left: List of files that are left in shared memory.
        errors: String. What it wrote to stderr.
        output: String. What it wrote to stdout.
    """

    code: int | None
    seconds: float
    report: float
    orphans: list[str]
    left: list[str]
    errors: str
    output: str


def launch(script: Path, arguments: list[str], folder: Path, *options: str, limit: float = 90.0) -> Outcome:
    """Run `easyscale launch OPTIONS script arguments`, whose fault is when the file `folder/failed` was written."""
    mark = f"EASYSCALE_FAULT={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    environment = {**os.environ, name: value, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "easyscale", "launch", *options, str(script), *arguments]
    report = code = None
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, env=environment)
        end = time.monotonic() + limit
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
            if report is None and b"stands still" in os.pread(errors.fileno(), 1 << 20, 0):
                report = time.time()
        code = process.poll()
        ended = time.time()
        while (alive := _alive(mark)) and time.time() < ended + 2:
            time.sleep(0.02)
        gone = time.time()
        if process.poll() is None:
            process.kill()
            process.wait()
        left = [path.name for path in SHARED_MEMORY.glob(f"easyscale-{process.pid}-*")]
        out.seek(0)
        errors.seek(0)
        failed = folder / "failed"
        at = float(failed.read_text()) if failed.exists() else float("nan")
        report = float("nan") if report is None else report - at
        return Outcome(code, gone - at, report, alive, left, errors.read(), out.read())


def _alive(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return found
