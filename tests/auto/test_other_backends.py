"""`easyscale launch --auto` with Keras on PyTorch and on JAX: two workers do what one process does."""

from pathlib import Path

import numpy as np
import pytest
from launches import run
from other_backends import JAX, LIMIT, TORCH

SCRIPT = Path(__file__).parent / "scripts" / "fine_tuning.py"


@pytest.mark.full
@pytest.mark.parametrize("other", [TORCH, pytest.param(JAX, marks=pytest.mark.full)], ids=lambda other: other.name)
def test_several_fits_are_those_of_one_process(other, tmp_path):
    results = []
    for size, options in ((1, []), (2, ["--auto"])):
        folder = tmp_path / str(size)
        folder.mkdir()
        done = run([*other.launch(size), *options, str(SCRIPT), str(folder)], timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        results.append(dict(np.load(folder / "result.npz")))
    assert "fit() trains one model on 2 workers; divided: 640 samples" in done.stderr
    assert results[0].keys() == results[1].keys()
    for key, value in results[0].items():
        np.testing.assert_allclose(results[1][key], value, rtol=1e-5, atol=1e-5, err_msg=key)
