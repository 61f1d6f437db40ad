"""EasyScale with the first and the last releases of what it stands on, each in an environment of its own.

`make test-versions PART=k` runs one of these; `make test-all` all. An environment sees all else of `.venv`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launches import run

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
LIMIT = 900.0  # seconds, with what is to be downloaded

NAMES = ("tests/test_keras_internals.py", "tests/test_versions.py")
ON_TENSORFLOW = ("tests/training/test_on_ranks.py::test_optimizers_on_ranks_take_the_steps_of_one_process",)
ON_DEVICES = ("tests/training/test_on_ranks.py::test_optimizers_on_devices_take_the_steps_of_one_device",)
ON_JAX = (
    "tests/backend/jax/test_on_ranks.py::test_jax_gives_what_a_backend_must",
    "tests/backend/jax/test_on_ranks.py::test_what_is_the_backends_own",
)
ON_TORCH = (
    "tests/backend/torch/test_on_ranks.py::test_torch_gives_what_a_backend_must",
    "tests/backend/torch/test_on_ranks.py::test_what_is_the_backends_own",
    "tests/backend/torch/test_on_ranks.py::test_training_goes_on_from_a_checkpoint",
)
# The environment, the backend, and what is run there.
PARTS = {
    "oldest-tensorflow": ("oldest", "tensorflow", (*NAMES, *ON_TENSORFLOW)),
    "oldest-jax": ("oldest", "jax", ON_JAX),
    "oldest-torch": ("oldest-torch", "torch", ON_TORCH),
    "keras-3.13": ("keras-3.13", "tensorflow", (*NAMES, *ON_TENSORFLOW)),
    "keras-3.14": ("keras-3.14", "tensorflow", (*NAMES, *ON_TENSORFLOW)),
    "newest-tensorflow": ("newest", "tensorflow", (*NAMES, *ON_TENSORFLOW)),
    "newest-devices": ("newest", "tensorflow", ON_DEVICES),
    "newest-jax": ("newest", "jax", ON_JAX),
    "newest-torch": ("newest-torch", "torch", ON_TORCH),
}
CHOSEN = os.environ.get("EASYSCALE_TESTS_PART")  # a number, of which the remainder counts


def _parts():
    names = list(PARTS)
    return names if not CHOSEN else [names[int(CHOSEN) % len(names)]]


@pytest.mark.full
@pytest.mark.timeout(7 * LIMIT)
@pytest.mark.parametrize("part", _parts())
def test_it_works_with_these_releases(part):
    environment, backend, tests = PARTS[part]
    inside = Path(sys.prefix, "versions", environment)
    # Not one of `make` that runs this, nor its variables: the environment is made of this one.
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    made = run(["make", "-C", str(ROOT), f"VENV={sys.prefix}", str(inside / ".done")], LIMIT, inherited)
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # where mpirun is
    command = [str(inside / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "--tb=short"]
    variables = {**inherited, "PATH": path, "EASYSCALE_TESTS_PART": ""}
    done = run([*command, f"--rootdir={ROOT}", *(str(ROOT / test) for test in tests)], LIMIT, variables)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)
    code = [str(inside / "bin" / "python"), "-m", "easyscale.keras_internals.table"]
    said = subprocess.run(
        code, env={**variables, "KERAS_BACKEND": backend}, capture_output=True, text=True, timeout=120
    )
    assert said.returncode == 0 and ", ".join(re.findall(r"(\d+) missing", said.stdout)) in ("0", "0, 0"), said.stdout
    print(part, re.findall(r"\d+ passed[^\n]*", done.stdout)[-1], said.stdout)


def test_each_file_of_requirements_has_a_part():
    assert {environment for environment, _, _ in PARTS.values()} == {file.stem for file in HERE.glob("*.txt")}
