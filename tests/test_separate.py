"""A forgotten `Distribute` is said, once and by rank 1; a script that trains several models on purpose is left alone.

So is a wrong argument, also before any rank has looked for the others.

Most scripts here have a Keras of their own, of a few lines, beside them: what is looked at is when `fit()` begins.
"""

import sys
import textwrap

import pytest
from launches import environment, run

KERAS = """
class Model:
    def fit(self):
        callback_list = callbacks.CallbackList()
        callback_list.callbacks, callback_list.model = [], self
        callback_list.on_train_begin()


class utils:
    class PyDataset:
        pass


class callbacks:
    class CallbackList:
        def on_train_begin(self, logs=None):
            print("trains", flush=True)
"""

REAL = """
import easyscale, keras, numpy as np
x, y = easyscale.shard(np.ones((8, 3), "float32"), np.ones((8, 1), "float32"))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=2, verbose=0, callbacks=[easyscale.callbacks.Distribute()])
model.fit(x, y, batch_size=2, verbose=0)
print("as one", flush=True)
model.compile("sgd", "mse")
for _ in range(2):
    model.fit(x, y, batch_size=2, verbose=0)
"""


def _said(folder, script, real=False, **variables):
    if not real:
        (folder / "keras.py").write_text(KERAS)
    (folder / "train.py").write_text(textwrap.dedent(script))
    launch = [sys.executable, "-m", "easyscale", "launch", "-n", "2", str(folder / "train.py")]
    done = run(launch, timeout=120, env=environment(**variables))
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "EasyScaleWarning" in line], done.stdout


@pytest.mark.parametrize(
    "script",
    [
        "import easyscale, keras; keras.Model().fit(); keras.Model().fit()",
        "import keras, easyscale; easyscale.shard([1, 2]); print(easyscale.rank()); keras.Model().fit()",
    ],
    ids=["nothing else called", "data divided"],
)
def test_a_forgotten_callback_is_said_once(tmp_path, script):
    (line,), output = _said(tmp_path, script)
    assert output.count("trains") >= 2
    assert line == (
        "[1] EasyScaleWarning: each of 2 ranks trains a model of its own: `fit()` must have the callback "
        "`Distribute` to train one on all of them. Received: none. Pass "
        "`callbacks=[easyscale.callbacks.Distribute()]`; "
        'if it is meant so, `warnings.filterwarnings("ignore", "each of .* ranks")`'
    )


@pytest.mark.parametrize(
    "script",
    [
        "import easyscale, keras; [keras.Model().fit() for _ in range(easyscale.is_chief())]",
        "import easyscale, keras; rate = [0.1, 0.2][easyscale.rank()]; keras.Model().fit()",
        "import easyscale, keras; from mpi4py import MPI; keras.Model().fit()",
        """
        import easyscale, keras, warnings
        warnings.filterwarnings("ignore", "each of .* ranks")
        keras.Model().fit()
        """,
    ],
    ids=["only the chief", "a search", "MPI of its own", "filtered"],
)
def test_what_is_meant_so_is_left_alone(tmp_path, script):
    lines, output = _said(tmp_path, script)
    assert "trains" in output
    assert not lines


def test_a_model_that_keras_trains_apart_after_a_fit_of_all_is_said(tmp_path):
    (line,), output = _said(tmp_path, REAL, real=True)
    assert line.startswith("[1] EasyScaleWarning: each of 2 ranks trains a model of its own")
    assert output.count("as one") == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('easyscale.local_batch("64")', "`global_batch` must be an integer. Received: global_batch='64'"),
        ("easyscale.shard(None)", "`shard` must be given data. Received: None. Try `x, y = easyscale.shard(x, y)`"),
    ],
)
def test_a_wrong_argument_is_one_line_of_one_rank(tmp_path, line, message):
    script = tmp_path / "train.py"
    script.write_text(f"import easyscale\n{line}\n")
    done = run([sys.executable, "-m", "easyscale", "launch", "-n", "2", str(script)], timeout=60, env=environment())
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if not line.startswith("easyscale: ")]
    assert [line.removeprefix("[1] ") for line in errors] == [f"ValueError: {message} ({script}, line 2)"]


@pytest.mark.parametrize(
    ("calls", "said"),
    [("", True), ("import easyscale; easyscale.rank()", False)],
    ids=["does not know of it", "asks for its rank"],
)
def test_a_script_that_loads_tensorflow_and_does_not_use_easyscale_is_told_of(tmp_path, calls, said):
    library = tmp_path / "libtensorflow_cc.so.2"  # what is looked for is that such a file is in memory
    library.write_bytes(bytes(4096))
    script = tmp_path / "train.py"
    script.write_text(
        f"import mmap, time\n{calls}\n"
        f"file = open({str(library)!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "time.sleep(3)\n"
    )
    done = run([sys.executable, "-m", "easyscale", "launch", "-n", "2", str(script)], timeout=90, env=environment())
    assert done.returncode == 0
    line = (
        "easyscale: each of 2 ranks has run the script by itself: `fit()` must have the callback "
        "`easyscale.callbacks.Distribute()` to train one model on all of them. Start a script as it is by "
        "`easyscale launch --auto`; if it is meant so, call `easyscale.rank()`\n"
    )
    assert done.stderr == (line if said else "")
