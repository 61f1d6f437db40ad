"""What is in memory between two steps: weights of all processes of a machine, and an optimizer's state of each.

    python benchmarks/memory.py

A dense layer of 64 million weights is trained on 1 and on 4 processes, with SGD, which has no state, and with Adam.
What a process has is what Linux says (PSS: pages that several have in common count as each one's share). State is what
Adam takes more than SGD. Weights are the pages that hold them, and the other place in which they take turns.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

RANKS = 4
UNITS = 8000  # by UNITS: 256 MB of weights


def train(optimizer):
    """Train in one of the processes; the chief prints, of all of them, the bytes of everything and of weights."""
    import keras
    import numpy as np

    import easyscale

    class Memory(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            easyscale.communicator.get().barrier()  # nobody is between two places now
            addresses = [_address(variable) for variable in self.model.trainable_variables]
            self.found = [_everything(), _pages(addresses)]

    model = keras.Sequential([keras.Input((UNITS,)), keras.layers.Dense(UNITS, use_bias=False)])
    model.compile(optimizer, "mse", jit_compile=False)
    x = np.ones((4, UNITS), "float32")
    memory = Memory()
    distribute = easyscale.callbacks.Distribute(check_every=10**6)
    model.fit(x, x, batch_size=1, verbose=0, callbacks=[distribute, memory])
    rows = easyscale.communicator.get().all_gather_rows(np.array(memory.found, "float64"))
    if easyscale.is_chief():
        print("found", json.dumps(rows.tolist()))


def _address(variable):
    import numpy as np

    return np.asarray(memoryview(variable.value.read_value())).__array_interface__["data"][0]


def _everything():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _pages(addresses):
    """The PSS of the mappings with these addresses and, if they are shared memory, of others that are as large."""
    mappings = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            start, stop = (int(end, 16) for end in words[0].split("-"))
            mappings.append({"start": start, "stop": stop, "shared": words[1][3] == "s"})
        elif words[0] == "Pss:":
            mappings[-1]["pss"] = 1024 * int(words[1])
    own = [
        mapping for mapping in mappings if any(mapping["start"] <= address < mapping["stop"] for address in addresses)
    ]
    sizes = {mapping["stop"] - mapping["start"] for mapping in own if mapping["shared"]}
    return sum(
        mapping["pss"]
        for mapping in mappings
        if mapping in own or (mapping["shared"] and mapping["stop"] - mapping["start"] in sizes)
    )


def measure(ranks, optimizer):
    command = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", str(ranks), __file__, optimizer]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    if done.returncode or not found:
        sys.exit(f"{ranks} processes must train. Received: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(found[-1].removeprefix("found "))


def main():
    found = {(ranks, name): measure(ranks, name) for ranks in (1, RANKS) for name in ("sgd", "adam")}
    nbytes = 4 * UNITS**2
    state = {}
    for ranks in (1, RANKS):
        sgd, adam = (statistics.mean(row[0] for row in found[ranks, name]) for name in ("sgd", "adam"))
        state[ranks] = adam - sgd
        weights = sum(row[1] for row in found[ranks, "sgd"])
        everything = sum(row[0] for row in found[ranks, "adam"]) / 1e9
        print(
            f"{ranks} processes: Adam's state {state[ranks] / nbytes:.2f} times the weights in each process, "
            f"weights {weights / nbytes:.2f} times on the machine, all memory {everything:.2f} GB"
        )
        if ranks > 1:
            print(f"state in each process {state[ranks] / state[1]:.2f} times that of 1 process")
            print(f"weights {weights / nbytes / ranks:.2f} times those of {ranks} processes each for itself")


if __name__ == "__main__":
    train(sys.argv[1]) if len(sys.argv) > 1 else main()
