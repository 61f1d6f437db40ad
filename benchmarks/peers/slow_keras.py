"""Trains with EasyScale in several ways that take turns. `slow_networks.py` starts it on each rank, with an order.

An order is JSON, and so is what the chief answers, in a line that begins with `found`.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[rank % len(cores)]})
os.environ.update({"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"})
sys.path.insert(0, str(Path(__file__).parents[1]))

import keras  # noqa: E402
import numpy as np  # noqa: E402
from mlp_of_digits import LOCAL_BATCH, RATE, answer, batches, digits, start  # noqa: E402
from tasks import TASKS  # noqa: E402

import easyscale  # noqa: E402
from easyscale.bench.fit import build  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.compression import ErrorFeedback, PowerSGD, TopK  # noqa: E402
from easyscale.update import DiLoCo, Gossip  # noqa: E402

SETTLING, CLASSES, SIZE = 2, 10, 32  # steps at the begin of each turn that do not count; classes and pixels of images
BUCKETS = 1 << 24  # bytes: what "auto" takes on a slow network, without timing it each time
EVERY = 100  # steps between rounds
START = 50  # the step from which on a training sends low ranks
comm = easyscale.communicator.get()


def arguments(way, begin=0):
    """Return the arguments of `Distribute` of a way: a form and, behind a colon, its share or rank.

    Or `diloco`, and behind the colon the number of fragments and, behind a plus, that of steps that overlap a round;
    `gossip` mixes weights in pairs, and `alone` steps without any exchange.
    """
    name, _, option = way.partition(":")
    if name == "diloco":
        fragments, _, overlap = option.partition("+")
        in_turns = {"fragments": int(fragments or 1), "overlap": int(overlap or 0)}
        return {"update": DiLoCo(every=EVERY, start_step=begin, **in_turns)}
    if name == "gossip":
        return {"update": Gossip()}
    if name == "alone":
        return {"update": DiLoCo(every=10**9)}
    forms = {
        "int8_errors_kept": lambda: ErrorFeedback("int8"),
        "top_k": lambda: TopK(float(option or 0.01)),
        "power_sgd": lambda: PowerSGD(int(option or 4), start_step=begin),
    }
    return {} if name == "none" else {"compression": forms[name]() if name in forms else name}


class Ends:
    """When steps have ended, and what had been sent. No callback: those may look at weights, and a step would wait."""

    def __init__(self):
        self.clocks, self.processor, self.sent = [], [], []
        end = keras.callbacks.CallbackList.on_train_batch_end

        def timed(callbacks, batch, logs=None):
            self.clocks.append(time.perf_counter())
            self.processor.append(time.process_time())
            self.sent.append(comm.sent.bytes)
            end(callbacks, batch, logs)

        keras.callbacks.CallbackList.on_train_batch_end = timed


def speed(model, batch, ways, rounds, steps, bucket_bytes):
    """Return seconds of a step, those of the processor, and bytes that a rank sends, by way: medians."""
    ends, generator = Ends(), np.random.default_rng(rank)
    shape = (784,) if model == "mlp" else (SIZE, SIZE, 3)
    count = batch * (SETTLING + steps)
    x, y = generator.normal(size=(count, *shape)).astype("float32"), generator.integers(0, CLASSES, count)
    models = {way: build(model, "momentum", SIZE, CLASSES) for way in ways}
    seconds, processor, sent = {way: [] for way in ways}, {way: [] for way in ways}, {}
    for turn in range(1 + rounds):
        for way in ways:
            ends.clocks.clear(), ends.processor.clear(), ends.sent.clear()
            own = Distribute("ring", **arguments(way), bucket_bytes=bucket_bytes, check_every=10**6)
            models[way].fit(x, y, batch_size=batch, shuffle=False, verbose=0, callbacks=[own])
            for clock, taken in ((ends.clocks, seconds), (ends.processor, processor)):
                slowest = comm.all_gather_rows(np.diff(clock[SETTLING - 1 :])).max(axis=0).tolist()
                taken[way] += slowest if turn else []  # the first turn traces
            sent[way] = float(np.diff(ends.sent[SETTLING - 1 :]).mean())
    return {
        way: {
            "seconds": statistics.median(seconds[way]),
            "processor": statistics.median(processor[way]),
            "bytes": sent[way],
        }
        for way in ways
    }


def stream(ways, rounds, cycles, batch):
    """Return samples per second and the most bytes that a rank sends in any second, by way: medians.

    The net is the transformer of `source`, and a cycle has as many steps as a round.
    """
    ends, task, found = Ends(), TASKS["source"], {way: [] for way in ways}
    x, y = easyscale.shard(*task.data((SETTLING + cycles * EVERY) * batch * comm.size // task.batch, 0))
    models = {way: task.build() for way in ways}
    for turn in range(1 + rounds):
        for way in ways:
            ends.clocks.clear(), ends.sent.clear()
            stop = len(x) if turn else 8 * batch  # the first turn traces
            own = Distribute("ring", **arguments(way), check_every=10**6)
            models[way].fit(x[:stop], y[:stop], batch_size=batch, shuffle=False, verbose=0, callbacks=[own])
            if turn:
                clocks, sent = np.array(ends.clocks[SETTLING - 1 :]), np.array(ends.sent[SETTLING - 1 :])
                last = np.searchsorted(clocks, clocks + 1, side="right") - 1
                rate = batch * comm.size * (len(clocks) - 1) / (clocks[-1] - clocks[0])
                found[way].append((rate, float((sent[last] - sent).max())))
    rows = comm.all_gather_object(found)
    return {
        way: {
            "samples": statistics.median(min(rank[way][turn][0] for rank in rows) for turn in range(rounds)),
            "bytes": statistics.median(max(rank[way][turn][1] for rank in rows) for turn in range(rounds)),
        }
        for way in ways
    }


def learn(task, ways, seeds, steps=None, before=None):
    """Return loss and accuracy on what is held out, and what a rank sends in a step, by way: a list, one for each seed.

    So many steps `before` are made in each way by an exchange of whole gradients, and do not count; or, without them,
    the first steps of a form that is learned are.
    """
    task, found = TASKS[task], {way: [] for way in ways}
    steps = steps or task.steps
    held_out = task.held_out()
    for seed in seeds:
        x, y = easyscale.shard(*task.data(steps, seed))
        batch = easyscale.local_batch(task.batch)
        first = (before or 0) * batch
        for way in ways:
            keras.utils.set_random_seed(seed)
            model, fit = task.build(), {"batch_size": batch, "shuffle": False, "verbose": 0}
            if before:
                model.fit(x[:first], y[:first], callbacks=[Distribute("ring", check_every=10**6)], **fit)
            counts = np.array([comm.sent.bytes, comm.sent.messages])
            begin = min(START, steps // 4) if before is None else 0
            own = Distribute("ring", **arguments(way, begin), check_every=10**6)
            model.fit(x[first:], y[first:], callbacks=[own], **fit)
            counts = np.array([comm.sent.bytes, comm.sent.messages]) - counts
            sent, messages = (counts / (steps - (before or 0))).tolist()
            loss, accuracy = model.evaluate(*held_out, batch_size=250, verbose=0)
            found[way].append({"loss": loss, "accuracy": accuracy, "bytes": sent, "messages": messages})
    return found


def beside_torch(way, steps, width, seed):
    """Return what `slow_torch.py` does, of the same net, the same batches and the same steps."""
    kernels = start(width, seed)
    dense = [keras.layers.Dense(kernel.shape[1], activation="relu") for kernel in kernels[:-1]]
    model = keras.Sequential([keras.Input((64,)), *dense, keras.layers.Dense(10)])
    model.set_weights([array for kernel in kernels for array in (kernel, np.zeros(kernel.shape[1], "float32"))])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, momentum=0.9), loss, jit_compile=False)
    x, y = batches(steps, seed, rank)
    ends, own = Ends(), Distribute("ring", **arguments(way, begin=2), bucket_bytes=BUCKETS, check_every=10**6)
    x, y = x.reshape(-1, 64), y.reshape(-1)
    model.fit(x, y, batch_size=LOCAL_BATCH, shuffle=False, verbose=0, callbacks=[own])
    return ends.clocks, model.evaluate(*digits(), verbose=0)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    what = order.pop("what")
    if what == "beside torch":
        said = answer(*beside_torch(**order))
    else:
        said = "found " + json.dumps({"speed": speed, "learn": learn, "stream": stream}[what](**order))
    if rank == 0:
        print(said, flush=True)
