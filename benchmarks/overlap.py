"""How much of the exchange is hidden by the forward and backward pass, between two emulated hosts.

    sudo .venv/bin/python benchmarks/overlap.py [--rate 1gbit] [--rounds 5] [--model resnet50] [--exchange ring]

Each host has one process, one core, and a link of `--rate` in each direction, with a delay of its queue only; ranks are
as `easyscale launch` starts them. Ways take turns, on the same ranks, and times are medians. With

    alone       a step of stock Keras on both hosts at once, which exchange nothing
    exchange    the bytes of a step, reduced and gathered in the same buckets while nothing computes

`1 - (step - alone) / exchange` of the exchange is hidden. Needs root on Linux, iproute2 and util-linux.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from unittest import mock

SETTLING = 3  # steps at the begin of each turn that do not count
ALONE, BEHIND, LATE = "Keras, no exchange", "gathered behind the update", "gathered in the next step"
BATCH, SIZE, CLASSES = 16, 64, 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--exchange", default="ring")
    parser.add_argument("--bucket-bytes", type=int)
    parser.add_argument("--onednn", default="on")
    options = parser.parse_args()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        return work(options)
    import two_hosts

    said = two_hosts.run(__file__, sys.argv[1:], options.rate, options.onednn)
    show(json.loads(next(line for line in said if line.startswith("{"))), options)
    print(*[line for line in said if line.startswith("EasyScale:")], sep="\n")


def show(measured: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    exchange, alone = measured["exchange"]["seconds"], measured[ALONE]["seconds"]
    print(f"{options.model}, {options.exchange}, {options.rate}: the exchange by itself takes {1e3 * exchange:.0f} ms")
    print(f"{'':28} {'ms a step':>10} {'of processor':>13} {'hidden':>7}")
    for name in (ALONE, BEHIND, LATE):
        step, processor = measured[name]["seconds"], measured[name]["processor"]
        hidden = f"{1 - (step - alone) / exchange:7.0%}" if name != ALONE else ""
        print(f"{name:28} {1e3 * step:10.0f} {1e3 * processor:13.0f} {hidden}")


def work(options: argparse.Namespace) -> None:
    """What each rank runs."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["OMPI_COMM_WORLD_RANK"]) % len(cores)]})
    threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    os.environ.update(threads)
    import keras
    import numpy as np

    import easyscale
    from easyscale.bench.fit import build
    from easyscale.callbacks import Distribute
    from easyscale.layout import bucket
    from easyscale.layout.specs import specs_of
    from easyscale.step.gradients import Gradients

    communicator, clocks = easyscale.communicator.get(), []
    end = keras.callbacks.CallbackList.on_train_batch_end

    def timed(callbacks, batch, logs=None):
        clocks.append((time.perf_counter(), time.process_time()))
        end(callbacks, batch, logs)

    keras.callbacks.CallbackList.on_train_batch_end = timed  # no callback: those may look at weights

    generator = np.random.default_rng(communicator.rank)
    count = BATCH * (SETTLING + options.steps)
    shape = (784,) if options.model == "mlp" else (SIZE, SIZE, 3)
    x, y = generator.normal(size=(count, *shape)).astype("float32"), generator.integers(0, CLASSES, count)
    ways = [ALONE, BEHIND, LATE]
    models = {way: build(options.model, "momentum", SIZE, CLASSES) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in [*ways, "exchange"]}
    processor: dict[str, list[float]] = {way: [] for way in ways}

    def train(way: str) -> None:
        distribute = Distribute(options.exchange, bucket_bytes=options.bucket_bytes, check_every=10**6)
        clocks.clear()
        communicator.barrier()
        models[way].fit(
            x,
            y,
            batch_size=BATCH,
            shuffle=False,
            verbose=2 * (way == LATE and not seconds[LATE]),
            callbacks=[distribute] if way != ALONE else [],
        )
        marks = clocks[SETTLING - 1 :]
        for clock, taken in ((0, seconds), (1, processor)):
            steps = [later[clock] - earlier[clock] for earlier, later in zip(marks[:-1], marks[1:], strict=True)]
            taken[way] += communicator.all_gather_rows(np.array(steps)).max(axis=0).tolist()

    def exchange() -> None:
        gradients = models[LATE].optimizer.workers.gradients
        buckets = bucket.plan(specs_of(models[LATE].trainable_variables), gradients.bucket_bytes)
        vectors = [np.zeros(planned.length, planned.dtype) for planned in buckets]
        communicator.barrier()
        start = time.perf_counter()
        for move in (gradients.exchange.reduce, gradients.exchange.gather):
            for vector in vectors:
                move(vector)
        seconds["exchange"].append(max(communicator.all_gather_object(time.perf_counter() - start)))

    # It was not there before the gather could be late.
    is_late = hasattr(Gradients, "late_gather")
    behind = mock.patch.object(Gradients, "late_gather", lambda *_: None) if is_late else contextlib.nullcontext()
    for turn in range(1 + options.rounds):
        for way in ways:
            with behind if way == BEHIND else contextlib.nullcontext():
                train(way)
        exchange()
        if turn == 0:  # traces
            for taken in (*seconds.values(), *processor.values()):
                taken.clear()
    if communicator.rank == 0:
        measured = {way: {"seconds": statistics.median(taken)} for way, taken in seconds.items()}
        for way, taken in processor.items():
            measured[way]["processor"] = statistics.median(taken)
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
