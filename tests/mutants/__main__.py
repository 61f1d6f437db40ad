"""`make mutants`: plants faults in EasyScale, runs the tests that touch their lines, and says which faults survive."""

import os
import random
import shutil
import subprocess
import sys
import time

import click

from mutants.planting import Fault, faults_in
from mutants.touching import ROOT, record, tests_of_lines

FOLDERS = ("step", "layout", "update", "exchange", "communicator", "compression", "checkpoint", "training")
ON_NUMPY = "tests/numpy_backend"
NUMPY = [str(ROOT / ".venv/backends/jax/bin/python"), "-P", "-m", "pytest"]
PYTEST = [sys.executable, "-P", "-m", "pytest"]


@click.group()
def main() -> None:
    """Plant faults in EasyScale and see that tests find them."""


@main.command("record")
@click.argument("tests", nargs=-1)
@click.option("--folder", default="build/touching", show_default=True, help="Where it is written.")
def record_lines(tests: tuple[str, ...], folder: str) -> None:
    """Run TESTS, by default all of `make test`, and record which of them run which lines."""
    commands: list[tuple[dict[str, str], list[str]]] = [({"KERAS_BACKEND": "numpy"}, [*NUMPY, "-q", ON_NUMPY])]
    if not tests or any(test != ON_NUMPY for test in tests):
        commands.append(({}, [*PYTEST, "-q", "--numprocesses", "3", "--dist", "loadgroup", *tests]))
    record(ROOT / folder, commands)


@main.command()
@click.option("--count", default=300, show_default=True, help="How many faults.")
@click.option("--seed", default=0, show_default=True, help="Which are drawn.")
@click.option("--only", multiple=True, help="A folder of easyscale/; may be given several times. [default: all eight]")
@click.option("--folder", default="build/touching", show_default=True, help="What `record` has written.")
@click.option("--patience", default=120.0, show_default=True, help="Seconds for the tests of one fault.")
def plant(count: int, seed: int, only: tuple[str, ...], folder: str, patience: float) -> None:
    """Plant faults, run the tests that touch them, and print those that survive."""
    faults = [
        (path, fault)
        for part in only or FOLDERS
        for path in sorted((ROOT / "easyscale" / part).rglob("*.py"))
        for fault in faults_in(path.read_text())
    ]
    drawn = random.Random(seed).sample(faults, min(count, len(faults)))
    click.echo(f"{len(drawn)} of {len(faults)} faults")
    survived = untouched = 0
    with _Copy() as copy:
        for number, (path, fault) in enumerate(drawn, 1):
            name = str(path.relative_to(ROOT))
            tests = tests_of_lines(ROOT / folder, name).get(fault.line, set())
            begin = time.monotonic()
            killer = copy.killed_by(name, fault, tests, patience) if tests else None
            survived, untouched = survived + (killer is None), untouched + (not tests)
            verdict = "killed" if killer else "SURVIVED" if tests else "UNTOUCHED"
            click.echo(
                f"{number}: {verdict} {name}:{fault.line}: {fault.before!r} -> {fault.after!r} "
                f"[{len(tests)} tests, {time.monotonic() - begin:.0f} s] {killer or ''}"
            )
    killed = len(drawn) - survived
    click.echo(f"{killed} of {len(drawn)} killed ({killed / len(drawn):.1%}); {untouched} not touched by any test")


class _Copy:
    """A copy of the files that git knows, in which faults are planted."""

    def __enter__(self) -> "_Copy":
        self.root = ROOT / "build" / f"mutant-{os.getpid()}"
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        for name in ("callbacks", "cli"):  # where they are when they are installed
            (self.root / "easyscale" / name).symlink_to(self.root / name)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root)

    def killed_by(self, name: str, fault: Fault, tests: set[str], patience: float) -> str | None:
        """Return the first of some tests that finds a fault, or `None`."""
        path = self.root / name
        original = path.read_text()
        path.write_text(fault.source)
        try:
            end = time.monotonic() + patience
            on_numpy = sorted(test for test in tests if test.startswith(ON_NUMPY))
            others = sorted(tests - set(on_numpy), key=lambda test: ("on_ranks" in test, test))
            return self._run({"KERAS_BACKEND": "numpy"}, NUMPY, on_numpy, end) or self._run({}, PYTEST, others, end)
        finally:
            path.write_text(original)

    def _run(self, variables: dict[str, str], command: list[str], tests: list[str], end: float) -> str | None:
        left = end - time.monotonic()
        if not tests or left <= 0:
            return None
        env = {**os.environ, **variables, "PYTHONDONTWRITEBYTECODE": "1"}
        env["PYTHONPATH"] = f"{self.root}{os.pathsep}{self.root / 'tests' / 'startup'}"
        command = [*command, "-x", "-q", "--no-header", "-p", "no:cacheprovider", "--timeout=60", *tests]
        process = subprocess.Popen(
            command, env=env, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            return None
        if process.returncode == 0:
            return None
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0][:120] if failed else f"exit code {process.returncode}: {said[-200:]!r}"


if __name__ == "__main__":
    main()
