"""One cell of the suite's tables: a model, a batch size, a number of ranks and a replication, in its own process.

A measured cell has a result file; one that was killed has none.
"""

import json
import os
import re
import resource
import signal
import subprocess
import time
from typing import NamedTuple

from easyscale import run_module
from easyscale.cli.launch.mpirun import end_with_parent

__all__ = ["OOM", "Cell", "measure", "read"]

OOM = "OOM"

_OUT_OF_MEMORY = re.compile(
    r"\bOOM\b|out of memory|ResourceExhausted|RESOURCE_EXHAUSTED|MemoryError|bad_alloc|Cannot allocate memory"
    r"|SharedMemoryError|signal 9 \(Killed\)|unable to mmap|failed to allocate",
    re.IGNORECASE,
)


class Cell(NamedTuple):
    """The parameters of one measurement, made in its own process."""

    model: str
    batch: int
    ranks: int
    replication: str = "between_graph"

    @property
    def is_in_graph(self) -> bool:
        return self.replication == "in_graph"

    @property
    def name(self) -> str:
        return f"{self.model}-batch{self.batch}-ranks{self.ranks}{'-in_graph' * self.is_in_graph}"

    def __str__(self) -> str:
        unit = "device" if self.is_in_graph else "rank"
        return f"{self.model}, batch {self.batch}, {self.ranks} {unit}{'s' * (self.ranks > 1)}"


def read(folder: str, cell: Cell) -> dict | None:
    """Return the result of a cell, or `None` if there is no complete one."""
    found = _read_json(_path(folder, cell))
    return found if found is not None and "seconds" in found and {"rows", "failed"} & set(found) else None


def measure(folder: str, cell: Cell, options: list[str], memory: int, timeout: float) -> dict:
    """Measure a cell in its own process, and write the result.

    Args:
        folder: String. The folder of the cells.
        cell: The `Cell`.
        options: Options of `easyscale bench fit`.
        memory: Int. Bytes that each rank may use.
        timeout: Float. Seconds that it may take.

    Returns:
        The result of `bench fit`, or a dict with `"failed"`: `OOM`, or one line.
    """
    partial = f"{_path(folder, cell)}.partial"
    command = run_module.command("easyscale", "bench", "fit", "-n", str(cell.ranks), "--model", cell.model)
    command += ["--batch-size", str(cell.batch), "--replication", cell.replication, "--json", partial, *options]

    def before_it_starts() -> None:
        end_with_parent()
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))  # fails before the OOM killer acts

    start = time.monotonic()
    with open(os.path.join(folder, f"{cell.name}.log"), "w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            preexec_fn=before_it_starts,
        )  # fmt: skip
        late = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
        said.seek(0)
        text = said.read()
    found = _read_json(partial)
    if process.returncode != 0 or found is None:
        found = {"failed": f"not done in {timeout:g} s" if late else _reason(text, process.returncode)}
    found["seconds"] = time.monotonic() - start
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
    os.replace(partial, _path(folder, cell))  # atomic
    return found


def _read_json(path: str) -> dict | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _path(folder: str, cell: Cell) -> str:
    return os.path.join(folder, f"{cell.name}.json")


def _end(process: subprocess.Popen) -> None:
    """End a process that is still running, with its ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _reason(text: str, code: int) -> str:
    if _OUT_OF_MEMORY.search(text) or code == -signal.SIGKILL:
        return OOM
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]*(Error|Exception)\b|easyscale", line)]
    return lines[-1][:200] if lines else f"ended with exit code {code}"
