"""Run Keras's own tests of training as they are, and with `Distribute` in every `fit()`: what passes must pass.

    make keras-tests
    python benchmarks/keras_tests.py [FOLDER] [--only PART] [--write]

FOLDER is the `keras/src` of the installed Keras, whose wheel has the tests in it. Those of trainers, callbacks and
optimizers are run by one process, those of callbacks also by two. `keras_tests_plugin.py` says what is added to them.
Where a module is missing that they import, such as `torch`, they fail without `Distribute` as well. `--only` takes a
part of a file's name; `--write` puts the table into docs/checked.md. All of it takes about 20 minutes.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import replace

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "checked.md"
FILES = {
    "trainers": "trainers/trainer_test.py",
    "callbacks": "callbacks/*_test.py",
    "optimizers": "optimizers/*_test.py",
}
PYTEST = ["pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-p", "keras_tests_plugin", "-W", "ignore", "-q"]
LAUNCH = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", "2", "--stall-timeout", "30", "-m"]
TEST_LIMIT, LIMIT = 180, 1800  # seconds for a test, and for all tests of one start
BAD = ["passed", "skipped", "started", "failed"]  # the later, the worse

# By the name of a test: why it cannot pass with `Distribute`, and why not on two processes.
EXCEPTIONS = {
    "test_adds_loss_scaling_optimizer": "looks at the class of `model.optimizer`, which is a `DistributedOptimizer`",
    "test_ema": "reads `model.optimizer._model_variables_moving_average`, which is private and the inner optimizer's",
}
EXCEPTIONS_ON_TWO = {
    "test_raise_error_terminate_stops_on_later_batch": "each process shuffles, and one alone may raise",
    "test_swap_ema_weights_with_tf_distribute": "trains in a `MirroredStrategy`, which several processes refuse",
    "test_RemoteMonitorWithJsonPayload": "expects a request of every process, and only the chief sends one",
}


def run(folder: Path, files: list[Path], *options: str, size: int = 1) -> dict[str, dict]:
    """Run the tests in `files` on `size` processes; return each one's outcome, and what it said where it failed."""
    command = [*(LAUNCH if size > 1 else [sys.executable, "-m"]), *PYTEST, *options, "--rootdir", str(folder)]
    command += ["--continue-on-collection-errors", "--timeout", str(TEST_LIMIT), "--timeout-method", "thread"]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    outcomes: dict[str, dict] = {}
    left = True
    while left:  # one process that fails alone ends all, and a test in which one dies, its own: some were not begun
        with tempfile.TemporaryDirectory() as out:
            done = Path(out, "done.json")
            done.write_text(json.dumps(list(outcomes)))
            line = [*command, "--outcomes", out, "--done", str(done), *map(str, files)]
            subprocess.run(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=LIMIT)
            ranks = [_read(Path(out, f"{rank}.jsonl")) for rank in range(size)]
        begun = {
            test: max((rank[test] for rank in ranks if test in rank), key=_badness) for test in set().union(*ranks)
        }
        left = any(o["outcome"] == "started" or size > 1 and o["outcome"] == "failed" for o in begun.values())
        outcomes |= begun
    return outcomes


def _read(file: Path) -> dict[str, dict]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {outcome["test"]: outcome for outcome in map(json.loads, lines)}


def _badness(outcome: dict) -> int:
    return BAD.index(outcome["outcome"])


def compare(stock: dict[str, dict], distributed: dict[str, dict], exceptions: dict[str, str]) -> dict[str, list]:
    """Return the names of the tests that pass, that fail for a known reason, and that fail for no such reason."""
    found: dict[str, list] = {"passed": [], "excepted": [], "failed": []}
    for test in sorted(test for test, outcome in stock.items() if outcome["outcome"] == "passed"):
        outcome = distributed.get(test, {"outcome": "not run", "said": ""})
        if outcome["outcome"] == "passed":
            found["passed"].append(test)
        elif test.rpartition("::")[2] in exceptions:
            found["excepted"].append(test)
        else:
            found["failed"].append(test)
            print(f"FAILED {test}: {outcome['outcome']}: {outcome['said']}", flush=True)
    return found


def main() -> None:
    installed = Path(importlib.util.find_spec("keras").submodule_search_locations[0], "src")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=installed)
    parser.add_argument("--only", default="", metavar="PART")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = ["| | pass without `Distribute` | P = 1 | P = 2 |", "|---|---|---|---|"]
    failed = 0
    for name, pattern in FILES.items():
        files = sorted(file for file in arguments.folder.glob(pattern) if arguments.only in file.name)
        if not files:
            if not arguments.only:
                sys.exit(f"FOLDER must hold Keras's tests. Received: '{arguments.folder}', without {pattern}")
            continue
        stock = run(arguments.folder, files)
        if not any(outcome["outcome"] == "passed" for outcome in stock.values()):
            said = next((outcome["said"] for outcome in stock.values()), "nothing was run")
            sys.exit(f"some of Keras's tests of {name} must pass without EasyScale. Received: none; {said}")
        ways = [compare(stock, run(arguments.folder, files, "--distribute"), EXCEPTIONS)]
        if name == "callbacks":
            exceptions = EXCEPTIONS | EXCEPTIONS_ON_TWO
            ways.append(compare(stock, run(arguments.folder, files, "--distribute", size=2), exceptions))
        failed += sum(len(way["failed"]) for way in ways)
        cells = [f"{len(way['passed'])} pass, {len(way['excepted'])} cannot, {len(way['failed'])} fail" for way in ways]
        passing = sum(outcome["outcome"] == "passed" for outcome in stock.values())
        rows.append("| " + " | ".join([name, str(passing), *cells, *[""] * (2 - len(cells))]) + " |")
        print(rows[-1], flush=True)
    print("\n".join(rows))
    if arguments.write and not arguments.only:
        replace(PAGE, "keras", rows)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
