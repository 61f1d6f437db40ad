"""A stage that dies ends the job, and with `--restarts` training goes on from the checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("loses_a_stage.py")


def launch(*options, folder, model="pipeline"):
    """Run the script by `easyscale launch`; without options as stock Keras in one process."""
    command = ["-m", "easyscale", "launch", *options] if options else []
    arguments = [folder, model] if options else [folder]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    return subprocess.run(
        [sys.executable, *command, SCRIPT, *arguments], capture_output=True, text=True, timeout=240, env=environment
    )


@pytest.mark.full
def test_a_stage_that_dies_ends_the_job_or_goes_on_from_the_checkpoint(tmp_path):
    ends, alone, *restarts = (tmp_path / name for name in ("ends", "alone", "pipeline", "scope"))
    for folder in (ends, alone, *restarts):
        folder.mkdir()
    done = launch("-n", "2", folder=ends)
    assert done.returncode == 137, done.stderr
    assert not (ends / "weights.npz").exists()
    assert launch(folder=alone).returncode == 0
    for folder in restarts:
        done = launch("-n", "2", "--restarts", "1", folder=folder, model=folder.name)
        assert done.returncode == 0, done.stderr
        assert "starts again in 1 s (1 of 1)" in done.stderr
        with np.load(folder / "weights.npz") as found, np.load(alone / "weights.npz") as expected:
            assert found.files == expected.files
            for name in expected.files:
                np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5)
