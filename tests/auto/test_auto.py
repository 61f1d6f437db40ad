"""Scripts as tutorials write them, unchanged, by `easyscale launch --auto`: two workers do what one process does.

Each script leaves its weights, `History`, evaluations and predictions in a file; one run has several scripts.
"""

import functools
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from launches import environment, run

FOLDER = Path(__file__).parent
EASYSCALE = str(Path(sys.executable).with_name("easyscale"))
SHORT = ["conv_net", "custom_train_step"]
EQUAL = [
    "tf_data",
    "checkpoints",
    "text",
    "fine_tuning",
    "tuner",
    "other_data",
    "sizes",
    "files",
    "moves",
    "predictions",
    *SHORT,
]
SHUFFLED = ["conv_net:shuffle", "tf_data:shuffle"]
pytestmark = [pytest.mark.xdist_group("auto")]


class Outcome(NamedTuple):
    """What the scripts have printed and left."""

    out: str
    err: str
    results: dict[str, dict[str, np.ndarray]]


def _outcome(workers: int, *names: str) -> Outcome:
    found = _run(workers, *(names or (*EQUAL, *SHUFFLED)))
    assert isinstance(found, Outcome), found
    return found


@functools.cache
def _run(workers: int, *names: str) -> Outcome | str:
    """Run scripts; return what they have left, or what was written if they fail."""
    start = [sys.executable] if workers == 1 else [EASYSCALE, "launch", "--auto", "-n", str(workers)]
    with tempfile.TemporaryDirectory() as folder:
        done = run([*start, str(FOLDER / "all_scripts.py"), folder, *names], timeout=450, env=environment())
        if done.returncode:
            return done.stdout[-3000:] + done.stderr[-6000:]
        results = {name: dict(np.load(Path(folder, name, "result.npz"))) for name in names}
    return Outcome(done.stdout, done.stderr, results)


@pytest.mark.parametrize("name", SHORT)
def test_two_workers_do_what_one_process_does(name):
    _compare(name, *SHORT)


@pytest.mark.full
@pytest.mark.parametrize("name", EQUAL)
def test_two_workers_do_what_one_process_does_in_each_script(name):
    _compare(name)


def _compare(name, *names):
    expected, found = (_outcome(workers, *names).results[name] for workers in (1, 2))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.full
@pytest.mark.parametrize("name", SHUFFLED)
def test_accuracy_is_that_of_one_process_where_data_are_shuffled(name):
    expected, found = (_outcome(workers).results[name]["score"][1] for workers in (1, 2))
    assert found >= expected - 0.01 > 0.8


@pytest.mark.full
def test_it_says_what_it_did_and_what_it_could_not():
    said = [line.removeprefix("easyscale: --auto: ") for line in _outcome(2).err.splitlines() if "--auto" in line]
    assert len({*said}) == len(said), "each line once, by one rank"
    for line in (
        "fit() trains one model on 2 workers; divided: 900 samples; a batch of 32 is 16 on each",
        "fit() trains one model on 2 workers; divided: a tf.data.Dataset, batch by batch",
        "fit() trains one model on 2 workers; divided: a Batches, batch by batch",
        "fit() trains one model on 2 workers; divided: a generator, batch by batch",
        "fit() trains one model on 2 workers; divided: 120 samples; a batch of 40 is 20 on each",
        "fit() trains one model on 2 workers; divided: 120 samples that each worker has drawn for itself, and takes "
        "its part of its own; a batch of 24 is 12 on each",
        "evaluate() is of all workers, predict() returns all rows, and save() and Keras's callbacks write on rank 0",
        "predict() of a generator is not divided: each worker predicts all of it",
        "a training loop of the script's own is not divided: each worker makes all of its steps",
    ):
        assert line in said
    assert re.search(r"^\[1\] Test accuracy: ", _outcome(2).out, re.MULTILINE), "print is each rank's own"
    assert _outcome(2).out.count("Epoch 2/3\n") == _outcome(1).out.count("Epoch 2/3\n"), "the chief shows progress"


KNOWS = """
import sys
import easyscale, keras, numpy as np

keras.utils.set_random_seed(0)
x = np.arange(48, dtype="float32").reshape(16, 3) / 48
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
xs, ys = easyscale.shard(x, x.sum(axis=1, keepdims=True))
size = easyscale.local_batch(4)
model.fit(xs, ys, batch_size=size, shuffle=False, verbose=0, callbacks=[easyscale.callbacks.Distribute()])
if easyscale.is_chief():
    model.save(sys.argv[1])
    print(len(xs), size, len(model.predict(x, verbose=0)), model.evaluate(x, x.sum(axis=1), verbose=0))
"""


NORMALIZES = """
import keras, numpy as np
x = np.arange(48, dtype="float32").reshape(16, 3) / 48
model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x.sum(axis=1, keepdims=True), batch_size=4, verbose=0)
"""


@pytest.mark.full
def test_it_says_where_steps_are_not_those_of_one_process(tmp_path):
    (tmp_path / "train.py").write_text(NORMALIZES)
    done = run([EASYSCALE, "launch", "-n", "2", "--auto", str(tmp_path / "train.py")], timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("--auto: BatchNormalization (norm) uses each worker's part of a batch, so steps") == 1


def test_a_script_that_has_the_three_lines_runs_as_before(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(KNOWS)
    printed = []
    for options in ([], ["--auto"]):
        done = run([EASYSCALE, "launch", "-n", "2", *options, str(script), str(tmp_path / "model.keras")], timeout=100)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1] and printed[0].startswith("8 2 16 ")
    assert "easyscale: --auto: the script is left alone: it calls EasyScale itself" in done.stderr
    assert done.stderr.count("--auto:") == 1


FORKS = """
import multiprocessing

def train(rate):
    import keras, numpy as np
    x = np.arange(48, dtype="float32").reshape(16, 3) / 48
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return round(model.fit(x, x.sum(axis=1), batch_size=4, shuffle=False, verbose=0).history["loss"][0], 5)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(train, [0.1, 0.01]))
"""


@pytest.mark.full
def test_what_a_script_forks_trains_alone(tmp_path):
    (tmp_path / "train.py").write_text(FORKS)
    alone = run([sys.executable, str(tmp_path / "train.py")], timeout=100)
    done = run([EASYSCALE, "launch", "-n", "2", "--auto", str(tmp_path / "train.py")], timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert sorted(done.stdout.splitlines()) == sorted([f"[1] {alone.stdout.strip()}", alone.stdout.strip()])


@pytest.mark.parametrize("lines", ["1 / 0", "def fails(:", "import no_such_module"])
def test_a_traceback_begins_with_the_script(tmp_path, lines):
    (tmp_path / "train.py").write_text(f"import os\n{lines}\n")
    alone = run([sys.executable, str(tmp_path / "train.py")], timeout=60)
    done = run([EASYSCALE, "launch", "-n", "2", "--auto", str(tmp_path / "train.py")], timeout=60)
    own = [line for line in done.stderr.splitlines() if not line.startswith(("[1]", "easyscale:"))]
    others = [line.removeprefix("[1] ") for line in done.stderr.splitlines() if line.startswith("[1]")]
    expected = [line for line in alone.stderr.splitlines() if line != "Traceback (most recent call last):"]
    assert expected in ([line for line in shown if "Traceback" not in line] for shown in (own, others)), done.stderr


SECOND = """
import os, pathlib, shutil, sys, time
folder, late = pathlib.Path(sys.argv[1]), int(os.environ["OMPI_COMM_WORLD_RANK"]) == int(sys.argv[2])

def write(name):
    path = folder / name
    path.write_text(name)
    (folder / f"{name}.{os.environ['OMPI_COMM_WORLD_RANK']}").touch()
    while len(list(folder.glob(f"{name}.?"))) < 2:  # both have written it
        time.sleep(0.01)
    time.sleep(0.3 * late)
    return path

os.rename(write("a"), folder / "renamed")
write("b").replace(folder / "replaced")
shutil.move(write("c"), folder / "moved")
os.makedirs(folder / "folder", exist_ok=True)
shutil.move(str(write("d")), str(folder / "folder"))
os.remove(write("e"))
write("f").unlink()
(folder / "g").mkdir()
write("g/file")
shutil.rmtree(folder / "g")
for change in (lambda: os.rename(folder / "a", folder / "renamed"), lambda: os.remove(folder / "e")):
    try:
        change()
    except FileNotFoundError:
        continue
    raise SystemExit("one process fails there")
"""


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_comes_second_finds_a_file_moved_or_removed(tmp_path, late):
    (tmp_path / "train.py").write_text(SECOND)
    (tmp_path / "files").mkdir()
    command = [EASYSCALE, "launch", "-n", "2", "--auto", str(tmp_path / "train.py"), str(tmp_path / "files"), str(late)]
    done = run(command, timeout=60)
    assert done.returncode == 0, done.stderr
    left = {
        str(path.relative_to(tmp_path / "files")): path.read_text()
        for path in (tmp_path / "files").rglob("*")
        if path.is_file() and path.suffix == ""
    }
    assert left == {"renamed": "a", "replaced": "b", "moved": "c", "folder/d": "d"}


MIRRORED = """
import keras, numpy as np, tensorflow as tf
with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((16, 3)), np.ones(16), batch_size=4, verbose=0)
"""
STATEFUL = """
import keras, numpy as np
model = keras.Sequential([keras.Input(batch_shape=(4, 5, 3)), keras.layers.LSTM(1, stateful=True)])
model.compile("sgd", "mse")
model.fit(np.ones((16, 5, 3)), np.ones(16), batch_size=4, verbose=0)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "message"),
    [
        (MIRRORED, "Received: MirroredStrategy, 2 processes. Remove the scope: each process is a worker"),
        (STATEFUL, "parts of 2 samples, and an input with a batch of 4. Build the model for 2 samples"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_remedy(tmp_path, script, message):
    (tmp_path / "train.py").write_text(script)
    done = run([EASYSCALE, "launch", "-n", "2", "--auto", str(tmp_path / "train.py")], timeout=100)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
