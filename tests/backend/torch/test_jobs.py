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
