"""Training that is interrupted and started again comes to the weights, and to the History, of one that was not."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness  # noqa: E402


def train(folder, *options, fault="none", moment="none"):
    folder.mkdir(exist_ok=True)
    return harness.launch(harness.TRAINING, ["ring", fault, moment, str(folder)], folder, *options, limit=300)


def result(folder):
    with np.load(folder / "weights.npz") as archive:
        return [archive[name] for name in archive.files], json.loads((folder / "history.json").read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = train(folder, "-n", "2")
    assert done.code == 0, done.errors
    return result(folder)


@pytest.mark.full
@pytest.mark.xdist_group("resume")
def test_killed_and_started_again_on_as_many_ranks_and_on_fewer(tmp_path, undisturbed):
    first, fewer, none = tmp_path / "first", tmp_path / "fewer", tmp_path / "none"
    done = train(first, "-n", "2", fault="sigkill", moment="mid-epoch")
    assert done.code == 137, done.errors
    shutil.copytree(first, fewer)
    newest = max((fewer / "checkpoints").iterdir(), key=lambda path: path.name)
    newest.write_bytes(newest.read_bytes()[:-100])
    shutil.copytree(fewer, none)
    for path in (none / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-100])

    assert train(first, "-n", "2").code == 0
    weights, history = result(first)
    for resumed, expected in zip(weights, undisturbed[0], strict=True):
        np.testing.assert_array_equal(resumed, expected)
    assert history == undisturbed[1]

    done = train(fewer, "-n", "1")
    assert done.code == 0, done.errors
    assert "is damaged (" in done.errors and "The one before it is taken" in done.errors
    weights, history = result(fewer)
    for resumed, expected in zip(weights, undisturbed[0], strict=True):
        np.testing.assert_allclose(resumed, expected, rtol=0, atol=1e-6)
    assert history.keys() == undisturbed[1].keys()
    for name, values in history.items():
        np.testing.assert_allclose(values, undisturbed[1][name], rtol=1e-5)

    done = train(none, "-n", "1")
    assert done.code == 0, done.errors
    assert done.errors.count("None is whole: training begins anew") == 1
    for resumed, expected in zip(result(none)[0], undisturbed[0], strict=True):
        np.testing.assert_allclose(resumed, expected, rtol=0, atol=1e-6)


@pytest.mark.xdist_group("resume")
@pytest.mark.parametrize("moment", [pytest.param("before step 1", marks=pytest.mark.full), "mid-epoch"])
def test_asked_to_end_it_writes_a_checkpoint_and_the_launcher_starts_again(tmp_path, undisturbed, moment):
    done = train(tmp_path, "-n", "2", "--restarts", "1", fault="sigterm", moment=moment)
    assert done.code == 0, done.errors
    assert "ended with exit code 75" in done.errors
    assert "easyscale: starts again in 1 s (1 of 1)" in done.errors
    weights, history = result(tmp_path)
    for resumed, expected in zip(weights, undisturbed[0], strict=True):
        np.testing.assert_array_equal(resumed, expected)
    assert history == undisturbed[1]
