"""How long it takes to the end of the first step: `easyscale launch -n 2` beside Python alone.

    python benchmarks/start.py [--rounds 5] [--script examples/digits.py]

Both run the same script, in turns, on all cores. A row is a moment, of several processes that of the last one;
medians.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAUNCH = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", "2"]
MOMENTS = {
    "python": "Python runs",
    "keras": "Keras is imported",
    "fit": "`fit()` begins",
    "step": "the first step ends",
}
# Each Python of a run begins with this.
_FIRST = """
import os, time

file = open(f"{os.environ['MOMENTS']}/{os.getpid()}", "a", buffering=1)
said = set()

def say(moment):
    if moment not in said:
        said.add(moment)
        file.write(f"{moment} {time.monotonic()}\\n")

def watch():
    say("keras")
    import sys
    callbacks = sys.modules["keras"].callbacks.CallbackList
    for name, moment in (("on_train_begin", "fit"), ("on_train_batch_end", "step")):
        def and_say(*args, original=getattr(callbacks, name), moment=moment, **kwargs):
            original(*args, **kwargs)
            say(moment)
        setattr(callbacks, name, and_say)

say("python")
from easyscale.when_imported import when_imported
when_imported("keras", watch)
"""


def run(command: list[str]) -> dict[str, float]:
    """Return after how many seconds the last process of a command has come to each moment."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(_FIRST)
        moments = Path(folder, "moments")
        moments.mkdir()
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "MOMENTS": str(moments), "TF_CPP_MIN_LOG_LEVEL": "2"}
        begin = time.monotonic()
        nothing = subprocess.DEVNULL
        subprocess.run(command, env=environment, check=True, stdin=nothing, stdout=nothing, stderr=nothing)
        said = [dict(line.split() for line in path.read_text().splitlines()) for path in moments.iterdir()]
    ranks = [times for times in said if "step" in times]  # the launcher is no rank
    return {moment: max(float(times[moment]) for times in ranks) - begin for moment in MOMENTS}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--script", default=str(ROOT / "examples" / "digits.py"))
    arguments = parser.parse_args()
    script = [arguments.script, "--epochs", "1"]
    ways = {"Python alone": [sys.executable, *script], "easyscale launch -n 2": [*LAUNCH, *script]}
    taken: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for turn in range(1 + arguments.rounds):
        for way, command in ways.items():
            found = run(command)
            if turn:  # the first finds nothing in the file cache
                taken[way].append(found)
    print(f"| seconds until | {' | '.join(ways)} | ratio |\n|---|---|---|---|")
    for moment, words in MOMENTS.items():
        first, several = (statistics.median(found[moment] for found in taken[way]) for way in ways)
        print(f"| {words} | {first:.2f} | {several:.2f} | {several / first:.2f} |")


if __name__ == "__main__":
    main()
