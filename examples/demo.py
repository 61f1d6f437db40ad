"""What `make demo` runs: the digits example as one process on one core, then as two processes on a core each."""

import os
import subprocess
import sys
from pathlib import Path

DIGITS = Path(__file__).with_name("digits.py")
EASYSCALE = Path(sys.executable).with_name("easyscale")


def train(command: list[str], cores: list[int]) -> dict[str, str]:
    """Run the digits example on `cores`, show what it prints, and return its results by name."""
    print("\n$", " ".join(part.removeprefix(f"{os.getcwd()}/") for part in command), flush=True)
    os.sched_setaffinity(0, cores)  # what is started from here on keeps to them
    results = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            name, colon, value = line.rstrip().partition(": ")
            if colon:
                results[name] = value
    if process.returncode:
        sys.exit(process.returncode)
    return results


def summary(single: dict[str, str], double: dict[str, str], cores: int) -> str:
    """The results of one process and of two, side by side."""
    times = float(double["samples/s"]) / float(single["samples/s"])
    rows = [
        ("", "1 process", "2 processes"),
        ("cores", "1", str(cores)),
        ("test accuracy", single["test accuracy"], double["test accuracy"]),
        ("samples/s", single["samples/s"], double["samples/s"]),
        ("equal weights on all ranks", "", double["equal weights on all 2 ranks"]),
    ]
    lines = [f"{name:<28}{left:>10}{right:>14}" for name, left, right in rows]
    lines.append(f"\nTwo processes trained {times:.2f} times as fast as one.")
    if cores == 1:
        lines.append("They had to share this machine's one core.")
    return "\n".join(lines)


if __name__ == "__main__":
    cores = sorted(os.sched_getaffinity(0))[:2]
    script = [str(DIGITS), *sys.argv[1:]]
    single = train([sys.executable, *script], cores[:1])
    double = train([str(EASYSCALE), "launch", "-n", "2", "--exchange", "ring", *script], cores)
    print("\n" + summary(single, double, len(cores)))
