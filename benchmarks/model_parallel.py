"""What a pipeline costs and saves: memory of a process, speed, and the share of a step in which a stage waits.

    python benchmarks/model_parallel.py [memory] [speed] [idle] [torch]

- memory: the peak of the resident memory less that of a process that has only loaded Keras, of 8 layers of 4096 x 4096
  weights with Adam: of each of 4 stages beside one process, in the steps, and with the end of `fit()`, where every rank
  gets all weights and all state, unless the model was built in `scope()`; of such a one also with a file that is saved.
- speed: samples per second of a transformer of equal blocks in 2 stages of one core each, beside `2 M / (M + 1)` times
  those of one process that is kept to one core, with M = 8 micro-batches: the median of epochs, in turns.
- idle: the share of a step that a stage spends outside of its own passes, beside `(S - 1) / (M + S - 1)`, on 2 stages
  of as many blocks each: the median of launches.
- torch: how many times as fast 2 stages are as one core, of the transformer of `speed` here, and of the same in PyTorch
  by `torch.distributed.pipelining` with Gloo and 1F1B; all four in turns. Needs PyTorch: `.venv-bench/bin/python`.

Speed, idle and torch need as many cores as stages, and a machine that does nothing else.
"""

import contextlib
import functools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, EPOCHS, ROUNDS = 6, 3, 3
BLOCKS, WIDTH, LENGTH, BATCH = 8, 256, 64, 64  # of the transformer


def train(what, stages, microbatches, scoped):
    """Train in one of the processes; the chief prints what all of them have measured."""
    import keras
    import numpy as np

    import easyscale
    from easyscale.parallel.pipeline.stage import Stage
    from easyscale.training.pipelined.whole_model import WholeModel

    keras.utils.set_random_seed(1)
    keras.ops.convert_to_numpy(keras.ops.ones(3))  # what is loaded by the first operation
    found = {"empty": _peak()}
    callbacks, scope = [], contextlib.nullcontext()
    if stages > 1:
        cut = "time" if what == "speed" else "weights"
        pipeline = easyscale.parallel.Pipeline(stages=stages, microbatches=microbatches, cut=cut)
        callbacks = [easyscale.callbacks.Distribute("ring", model_parallel=pipeline)]
        scope = pipeline.scope() if scoped else scope
    gather, step, steps, busy = WholeModel.gather_weights, Stage.step, [], []

    def noted(whole):
        found["steps"] = _peak()
        gather(whole)

    def timed(stage, *args):
        spent = [0.0]
        forward, backward = stage._passes.forward, stage._passes.backward
        stage._passes.forward, stage._passes.backward = _adding(forward, spent), _adding(backward, spent)
        start = time.perf_counter()
        try:
            return step(stage, *args)
        finally:
            steps.append(time.perf_counter() - start)
            busy.append(spent[0])
            stage._passes.forward, stage._passes.backward = forward, backward

    WholeModel.gather_weights, Stage.step = noted, timed
    with scope:
        model, x, y, batch = memory_model() if what == "memory" else speed_model()
    data = _untuned(x, y, batch)
    if what != "memory":
        model.fit(data, callbacks=callbacks, verbose=0)  # traces
        steps.clear(), busy.clear()
    begins = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begins.append(time.perf_counter()))
    model.fit(data, callbacks=[*callbacks, note], epochs=1 if what == "memory" else EPOCHS + 1, verbose=0)
    found["rate"] = len(x) / statistics.median(np.diff(begins)) if len(begins) > 1 else 0.0
    found["end"] = _peak()
    found.setdefault("steps", found["end"])
    if scoped:
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder, "model.keras"))
    found["save"] = _peak()
    found["idle"] = statistics.median(1 - b / s for b, s in zip(busy, steps, strict=True)) if steps else 0.0
    rows = easyscale.communicator.get().all_gather_rows(np.array([found[name] for name in sorted(found)]))
    if easyscale.communicator.get().rank == 0:
        print("found", json.dumps([dict(zip(sorted(found), row, strict=True)) for row in rows.tolist()]))


def _untuned(x, y, batch):
    """Return batches that TensorFlow does not tune: else an epoch of stock Keras, kept to one core, ends late."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).with_options(options)


def memory_model():
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((4096,)), *(keras.layers.Dense(4096, "relu") for _ in range(8))])
    model.compile("adam", "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(32 * 3, 4096)).astype("float32")
    return model, x, x, 32


def speed_model():
    import keras
    import numpy as np

    inputs = x = keras.Input((LENGTH, WIDTH))
    for _ in range(BLOCKS):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, WIDTH // 4)(y, y)
        y = keras.layers.Dense(4 * WIDTH, "gelu")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dense(WIDTH)(y)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(BATCH * STEPS, LENGTH, WIDTH)).astype("float32")
    return model, x, x, BATCH


def _adding(function, spent):
    def call(*args):
        start = time.perf_counter()
        try:
            return function(*args)
        finally:
            spent[0] += time.perf_counter() - start

    return call


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(what, stages, microbatches=8, cores=None, scoped=False):
    """Return what each of so many processes has found; they are kept to these cores."""
    command = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", str(stages), __file__]
    command += ["--rank", what, str(stages), str(microbatches), "scope" if scoped else "-"]
    keep = cores and functools.partial(os.sched_setaffinity, 0, cores)
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, preexec_fn=keep)
    found = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    if done.returncode or not found:
        sys.exit(f"{stages} processes must train. Received: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(found[-1].removeprefix("found "))


def memory():
    (alone,) = measure("memory", 1)
    whole = alone["end"] - alone["empty"]
    print(f"memory   one process {whole / 1e6:,.0f} MB")
    for scoped in (False, True):
        for number, rank in enumerate(measure("memory", 4, scoped=scoped)):
            steps, end, save = ((rank[name] - rank["empty"]) / whole for name in ("steps", "end", "save"))
            of_file = f", {save:.2f} with a file" if scoped else ""
            print(f"memory   {'scope()' if scoped else ''} stage {number}: {steps:.2f} of it in the steps, ", end="")
            print(f"{end:.2f} with the end of fit(){of_file}")


def speed():
    core = {min(os.sched_getaffinity(0))}
    rates = [(measure("speed", 1, cores=core)[0]["rate"], measure("speed", 2)[0]["rate"]) for _ in range(ROUNDS)]
    alone, staged = (statistics.median(rate) for rate in zip(*rates, strict=True))
    print(f"speed    one core {alone:.1f} samples/s, 2 stages {staged:.1f}: {staged / alone:.2f} times; ", end="")
    print(f"{staged / (alone * 2 * 8 / 9):.2f} of 2 M / (M + 1)")


def measure_torch(stages, microbatches=8):
    """Return the samples per second of PyTorch in so many processes, each kept to a core."""
    sizes = [stages, microbatches, BLOCKS, WIDTH, LENGTH, BATCH, STEPS, EPOCHS]
    command = [sys.executable, str(Path(__file__).parent / "peers" / "pipeline_torch.py"), *map(str, sizes)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        found = {"WORLD_SIZE": str(stages), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **found, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(stages)
    ]
    printed = [rank.communicate(timeout=1800)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"PyTorch must train. Received: exit codes {[rank.returncode for rank in ranks]}")
    return float(printed[-1].split()[-1])


def torch():
    core, rates = {min(os.sched_getaffinity(0))}, []
    for _ in range(ROUNDS):
        ours = [measure("speed", 1, cores=core)[0]["rate"], measure("speed", 2)[0]["rate"]]
        rates.append([*ours, measure_torch(1), measure_torch(2)])
    alone, staged, torch_alone, torch_staged = (statistics.median(rate) for rate in zip(*rates, strict=True))
    print(f"torch    EasyScale {alone:.1f} samples/s on one core, {staged:.1f} in 2 stages: {staged / alone:.2f} times")
    print(f"torch    PyTorch {torch_alone:.1f} and {torch_staged:.1f}: {torch_staged / torch_alone:.2f} times")


def idle():
    for microbatches in (4, 8, 16):
        rounds = [[rank["idle"] for rank in measure("idle", 2, microbatches)] for _ in range(ROUNDS)]
        shares = [statistics.median(stage) for stage in zip(*rounds, strict=True)]
        print(f"idle     M = {microbatches}: {shares[0]:.2f} and {shares[1]:.2f}; formula {1 / (microbatches + 1):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "scope")
    else:
        for name in sys.argv[1:] or ["memory", "speed", "idle"]:
            {"memory": memory, "speed": speed, "idle": idle, "torch": torch}[name]()
