"""Rank side of `easyscale bench fit`: trains and measures. The chief writes JSON lines to stdout.

    {"machine": ...}      once
    {"measuring": ...}    before each batch size
    {"row": ...}          after it, for each exchange
    {"choice": ...}       once, if "auto" is one of the exchanges: its choice, and the timings of all candidates

Every rank runs `main`.
"""

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from easyscale import backend, replication, workers
from easyscale import communicator as communicators
from easyscale.bench.machine import describe_machine
from easyscale.bench.models import ZOO
from easyscale.bench.telling import teller
from easyscale.callbacks.distribute import Distribute
from easyscale.choice import Choice
from easyscale.communicator import Communicator
from easyscale.optimizers.lars import LARS

__all__ = ["StepTimes", "build", "main"]

BOUND, ALONE = "no exchange", "Keras, 1 process"
STOCK = "Keras's MirroredStrategy"
SETTLING = 2  # warm-up steps of each turn, not counted


class StepTimes(keras.callbacks.Callback):
    """Records the time of every step of a `fit()` in `seconds`."""

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        float((logs or {}).get("loss", 0.0))  # waits for the step, which the backend may run asynchronously
        self.seconds.append(time.perf_counter() - self._start)


def build(name: str, optimizer: str, image_size: int, classes: int | None = None) -> keras.Model:
    """Return a compiled model of the zoo; `"momentum"` is SGD with momentum. `classes` defaults to the paper's."""
    own: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
        "lars": LARS,
        "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    }
    model = ZOO[name].make(image_size, classes or ZOO[name].classes)
    compiles = not backend.get().exchanges_in_steps  # on JAX, compile stock Keras's steps like EasyScale's passes
    model.compile(own[optimizer]() if optimizer in own else optimizer, ZOO[name].loss(), jit_compile=compiles)
    return model


def main() -> None:
    """Run the measurements that this process's argument specifies."""
    wanted = json.loads(sys.argv[1])
    communicator = communicators.get()
    say = teller(communicator)
    say({"machine": _machine(communicator)})
    for batch in wanted["batches"]:
        say({"measuring": f"batch {batch}"})
        measured, choice = _measure(communicator, wanted, batch)
        for name, times in measured.items():
            row = {"ranks": workers.size(), "batch": batch, "exchange": name, "times": times}
            row["replication"] = replication.check(None)
            say({"row": row})
    if choice is not None:
        timings = [timing._asdict() for timing in choice.timings]
        chosen = {"exchange": choice.exchange.name, "bucket_bytes": choice.bucket_bytes}
        say({"choice": {"ranks": workers.size(), "chosen": chosen, "timings": timings}})


def _measure(communicator: Communicator, wanted: dict, batch: int) -> tuple[dict[str, list[float]], Choice | None]:
    """Return the seconds of each step by exchange, averaged over ranks; and the choice that "auto" made."""
    generator = np.random.default_rng(communicator.rank)
    devices = workers.size() // communicator.size
    in_graph = replication.check(None) == "in_graph"
    bound = STOCK if in_graph else BOUND
    kind: Any = replication.get()
    scopes = {bound: kind.stock_scope()}
    models = {}
    for name in [*wanted["exchanges"], bound]:
        with scopes.get(name) or workers.scope():
            models[name] = build(wanted["model"], wanted["optimizer"], wanted["image_size"])
    models[ALONE] = build(wanted["model"], wanted["optimizer"], wanted["image_size"]) if in_graph else models[bound]
    count = batch * (SETTLING + wanted["steps"])
    x, y = ZOO[wanted["model"]].data(models[ALONE], devices * count, generator)

    def train(name: str) -> list[float]:
        clock = StepTimes()
        callbacks = [clock] if name in (bound, ALONE) else [Distribute(name, check_every=10**6), clock]
        each = 1 if name == ALONE else devices
        data = {"x": x[: each * count], "y": y[: each * count], "batch_size": each * batch}
        models[name].fit(**data, shuffle=False, verbose=0, callbacks=callbacks)
        return clock.seconds[SETTLING:]

    for name in models if in_graph else [*wanted["exchanges"], bound]:
        train(name)  # traces
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(wanted["rounds"]):
        for name, taken in times.items():
            communicator.barrier()
            if name != ALONE or communicator.rank == 0:
                taken += train(name)
    communicator.barrier()
    alone = times.pop(ALONE)
    means = {name: communicator.all_gather_rows(np.array(taken)).mean(axis=0).tolist() for name, taken in times.items()}
    if in_graph:
        means = {name if name == bound else f"{name}, in-graph": taken for name, taken in means.items()}
    return means | {ALONE: alone}, models[
        "auto"
    ].optimizer.workers.gradients.config.choice if "auto" in models else None


def _machine(communicator: Communicator) -> dict:
    name = backend.get().name
    package = importlib.metadata.packages_distributions()[name][0]  # TensorFlow's has more than one name
    version = f"{name} {importlib.metadata.version(package)}"
    return {**describe_machine(communicator), "backend": version, "keras": keras.__version__}


if __name__ == "__main__":
    main()
