"""`easyscale bench fit`, beside stock Keras on the same backend."""

import json
import re

from launches import environment, run
from other_backends import LIMIT

__all__ = ["check_a_bench"]


def check_a_bench(other, folder):
    """Two ranks train a small model of the zoo by an exchange, without one, and as stock Keras does."""
    options = ["--model", "cifar10", "--batch-size", "2", "--steps", "1", "--rounds", "1", "--exchanges", "ring"]
    command = [*other.easyscale, "bench", "fit", "-n", "2", *options, "--json", str(folder / "a.json")]
    done = run(command, 2 * LIMIT, environment())
    assert done.returncode == 0, done.stderr
    written = json.loads((folder / "a.json").read_text())
    assert [row["exchange"] for row in written["rows"]] == ["ring", "no exchange", "Keras, 1 process"]
    assert all(len(row["times"]) == 1 and row["times"][0] > 0 for row in written["rows"])
    assert re.search(rf"Keras \S+ on {other.name} \d", done.stdout), done.stdout
