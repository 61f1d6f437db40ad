"""Which backend Keras will have is known before it is imported, and what is wrong with it is said in one line."""

import json
import sys

import keras
import pytest
from launches import environment, run

from easyscale import backend, keras_backend
from easyscale.errors import EasyScaleError

LIMIT = 60.0


@pytest.mark.parametrize(
    ("asked", "file", "expected"),
    [
        ("torch", None, "torch"),
        ("torch", {"backend": "jax"}, "torch"),
        (None, {"backend": "jax"}, "jax"),
        ("", {"floatx": "float32"}, "tensorflow"),
        (None, None, "tensorflow"),
    ],
)
def test_the_variable_counts_then_the_file_of_keras(tmp_path, monkeypatch, asked, file, expected):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if asked is not None:
        monkeypatch.setenv("KERAS_BACKEND", asked)
    if file is not None:
        (tmp_path / "keras.json").write_text(json.dumps(file))
    assert keras_backend.chosen() == expected


def _run(script, **variables):
    """Run a script in which no backend is installed, and return its errors."""
    script = "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'torch', 'jax']))\n" + script
    done = run([sys.executable, "-c", script], LIMIT, environment(**variables))
    assert done.returncode == 1, done.stdout
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    "script",
    [
        "import easyscale, keras",
        "import easyscale; easyscale.DistributedOptimizer",
        "from easyscale.callbacks import Distribute",
        "from easyscale.optimizers import LARS",
    ],
)
@pytest.mark.parametrize("name", ["tensorflow", "torch", "jax"])
def test_a_backend_that_is_not_installed_is_said_before_keras_misses_it(script, name):
    assert _run(script, KERAS_BACKEND=name)[-1] == (
        f"easyscale.errors.EasyScaleError: the backend of Keras must be installed. Received: '{name}', which is not. "
        f"Run: pip install 'easyscale[{name}]'"
    )


def test_a_backend_that_nobody_has_is_said_too():
    assert _run("import easyscale, keras", KERAS_BACKEND="tensroflow")[-1] == (
        "easyscale.errors.EasyScaleError: the backend of Keras must be one of ['tensorflow', 'torch', 'jax'] for "
        "EasyScale. Received: 'tensroflow', which is not installed either. Set KERAS_BACKEND=tensorflow"
    )


def test_a_script_that_imports_keras_first_is_not_started(tmp_path):
    (tmp_path / "train.py").write_text("import keras, easyscale")
    launch = [sys.executable, "-m", "easyscale", "launch", "-n", "2", str(tmp_path / "train.py")]
    done = run(launch, LIMIT, environment(KERAS_BACKEND="tensroflow"))
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "the backend of Keras must be one of ['tensorflow', 'torch', 'jax'] for EasyScale" in done.stderr


def test_it_is_one_line_on_a_rank():
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    errors = _run("import easyscale, keras", KERAS_BACKEND="torch", OMPI_COMM_WORLD_LOCAL_SIZE="2", **ranks)
    assert len(errors) == 1 and errors[0].startswith("EasyScaleError: the backend of Keras must be installed.")


def test_whoever_only_looks_for_keras_is_left_alone():
    script = "import easyscale, importlib.util as u; u.find_spec('keras'); sys.exit(1)"
    assert _run(script, KERAS_BACKEND="torch") == []


def test_a_backend_that_was_chosen_too_late_is_refused(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    backend._get.cache_clear()
    rule = "must be set before Keras is imported. Received: KERAS_BACKEND=torch and a Keras that uses 'tensorflow'"
    with pytest.raises(EasyScaleError, match=rule):
        backend.get()
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())
    assert backend.get().name == "tensorflow"
