"""Jobs of Keras on PyTorch, started as a user starts them: what they need, and what is refused in one line."""

import keras
import numpy as np
import pytest
from other_backends import BEGIN, LIMIT

import easyscale

pytestmark = pytest.mark.timeout(LIMIT + 60)


def test_a_job_needs_no_tensorflow(job):
    script = "import sys; sys.modules['tensorflow'] = None\n" + BEGIN
    script += """
fit(callbacks=[easyscale.callbacks.Distribute("ring")])
weights = easyscale.communicator.get().all_gather_object(model.get_weights()[0].tolist())
print(weights[0] == weights[1], keras.backend.backend(), flush=True)
"""
    done = job(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.removeprefix("[1] ") for line in done.stdout.splitlines()] == ["True torch"] * 2


REFUSED = {
    "Distribute(replication='in_graph')": (
        "replication='in_graph' needs another backend of Keras. Received: KERAS_BACKEND=torch. Use 'between_graph', "
        "or set KERAS_BACKEND=tensorflow"
    ),
    "Distribute(model_parallel=easyscale.parallel.Pipeline(stages=2))": (
        "`model_parallel` needs another backend of Keras. Received: KERAS_BACKEND=torch. Leave `model_parallel` out, "
        "or set KERAS_BACKEND=tensorflow"
    ),
}


def test_what_torch_does_not_have_is_refused_before_training(job):
    script = BEGIN + "before = model.get_weights()[0]\n"
    for call in REFUSED:
        script += f"model.compile('sgd', 'mse')\ntry:\n    {call}\nexcept ValueError as error:\n    print(error)\n"
    script += "assert (model.get_weights()[0] == before).all()"
    done = job(script)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("[1]")] == list(REFUSED.values())


@pytest.mark.parametrize(
    ("script", "options", "error"),
    [
        (
            "fit(callbacks=[easyscale.callbacks.Distribute()])",
            ["--elastic"],
            "ValueError: `--elastic` needs another backend of Keras. Received: KERAS_BACKEND=torch. "
            "Start without --elastic, or set KERAS_BACKEND=tensorflow",
        ),
        (
            "import os; os.environ['KERAS_BACKEND'] = 'tensorflow'; easyscale.callbacks.Distribute()",
            [],
            "EasyScaleError: KERAS_BACKEND must be set before Keras is imported. Received: KERAS_BACKEND=tensorflow "
            "and a Keras that uses 'torch'. Set it where the script is started: KERAS_BACKEND=tensorflow easyscale "
            "launch -n 2 train.py",
        ),
    ],
)
def test_a_job_that_is_refused_ends_with_one_line(job, script, options, error):
    done = job(BEGIN + script, *options)
    lines = [line.removeprefix("[1] ").partition(" (/")[0] for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert error in lines
    assert [line for line in lines if line != error and not line.startswith("easyscale: rank")] == []


def test_ranks_with_different_backends_are_told_so(job):
    script = "import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1': os.environ['KERAS_BACKEND'] = 'tensorflow'\n"
    done = job(script + BEGIN + "fit(callbacks=[easyscale.callbacks.Distribute('ring')])")
    assert done.returncode == 1
    rule = "DesyncError: all ranks must use the same exchange, replication, update, compression, bucket_bytes and "
    received = "['ring', 'between_graph', 'auto', None, None, 'torch'] on rank 0, "
    assert rule + "Keras backend. Received: " + received in done.stderr and "'tensorflow'] on rank 1" in done.stderr


RESUMING = """
import os, signal, sys
from pathlib import Path
import easyscale, keras, numpy as np
folder, first = Path(sys.argv[1]), Path(sys.argv[1], "has begun")
class EndsOnce(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and self.model.optimizer.iterations > 8 and easyscale.rank() == 1 and not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGTERM)
def train(*callbacks, **options):
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(72, 3)).astype("float32")
    x, y = easyscale.shard(x, x.sum(axis=1, keepdims=True))
    layers = keras.layers.Dense(4), keras.layers.Dropout(0.2), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    distribute = easyscale.callbacks.Distribute("ring", **options)
    fit = model.fit(x, y, easyscale.local_batch(12), epochs=3, verbose=0, callbacks=[distribute, *callbacks])
    return fit.history, [weight.tolist() for weight in model.get_weights()]
again = train(EndsOnce(), checkpoint=folder)
print("same", again == train(), flush=True)
"""


def test_asked_to_end_a_job_is_started_again_and_comes_to_the_same_weights(job, tmp_path):
    (tmp_path / "run").mkdir()
    done = job(RESUMING, "--restarts", "1", arguments=[str(tmp_path / "run")])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "has begun").exists() and "easyscale: starts again in 1 s (1 of 1)" in done.stderr
    assert done.stdout.count("same True") == 2 and "False" not in done.stdout


ELSEWHERE = """
import sys
import easyscale, keras, numpy as np
{train}
found = train(2, int(sys.argv[2]), easyscale.callbacks.Distribute("ring", checkpoint=sys.argv[1]))
if easyscale.is_chief():
    np.savez(sys.argv[3], *found)
"""
TRAIN = """
def train(epochs, batch, *callbacks):
    x = np.random.default_rng(0).normal(size=(48, 3)).astype("float32")
    x, y = easyscale.shard(x, x.sum(axis=1, keepdims=True))
    keras.utils.set_random_seed(1)
    layers = keras.layers.Dense(4, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse")
    model.fit(x, y, batch, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model.get_weights()
"""


def test_a_checkpoint_of_tensorflow_goes_on_on_torch(job, tmp_path):
    names = {"easyscale": easyscale, "keras": keras, "np": np}
    exec(TRAIN, names)
    names["train"](1, 12, easyscale.callbacks.Distribute(checkpoint=tmp_path / "run"))
    arguments = [str(tmp_path / "run"), "12", str(tmp_path / "weights.npz")]
    done = job(ELSEWHERE.format(train=TRAIN), arguments=arguments, size=1)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "weights.npz") as archive:
        for name, expected in zip(archive.files, names["train"](2, 12), strict=True):
            np.testing.assert_allclose(archive[name], expected, rtol=0, atol=1e-5)
