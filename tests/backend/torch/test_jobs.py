"""Jobs of Keras on PyTorch, started as a user starts them: what they need, and what is refused in one line."""

import textwrap

import pytest
from launches import environment, run
from torch_ranks import launch

LIMIT = 120.0

pytestmark = pytest.mark.timeout(LIMIT + 60)

BEGIN = """
import easyscale, keras, numpy as np
keras.utils.set_random_seed(easyscale.rank())
x, y = easyscale.shard(np.arange(48, dtype="float32").reshape(16, 3) / 48, np.ones((16, 1), "float32"))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
def fit(**options):
    model.fit(x, y, batch_size=easyscale.local_batch(8), verbose=0, **options)
"""


@pytest.fixture
def job(tmp_path):
    """Run a script on two ranks and return the finished process."""

    def run_script(script, *options, **variables):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        return run([*launch(2), *options, str(path)], LIMIT, environment(**variables))

    return run_script


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
    "Distribute(checkpoint='run')": (
        "`checkpoint` needs another backend of Keras. Received: KERAS_BACKEND=torch. "
        "Use `keras.callbacks.BackupAndRestore`, or set KERAS_BACKEND=tensorflow"
    ),
    "fit(callbacks=[Distribute('parameter_server:async')])": (
        "an exchange that waits for no worker needs another backend of Keras. Received: KERAS_BACKEND=torch. "
        "Use 'parameter_server', or set KERAS_BACKEND=tensorflow"
    ),
    "model.fit(((x, y) for _ in range(9)), steps_per_epoch=1, verbose=0, callbacks=[Distribute()])": (
        "`steps_per_epoch` of data whose number of batches is not known needs another backend of Keras. Received: "
        "KERAS_BACKEND=torch. Leave `steps_per_epoch` out, or set KERAS_BACKEND=tensorflow"
    ),
}


def test_what_torch_does_not_have_is_refused_before_training(job):
    script = BEGIN + "from easyscale.callbacks import Distribute\nbefore = model.get_weights()[0]\n"
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
            ["--servers", "1"],
            "ValueError: `--servers` needs another backend of Keras. Received: KERAS_BACKEND=torch. "
            "Start without --servers, or set KERAS_BACKEND=tensorflow",
        ),
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
