"""What tests of checkpoints write, and what they find in a folder."""

import ml_dtypes
import numpy as np

from easyscale.checkpoint.folder import Checkpoint, Checkpoints

ARRAYS = {
    "weight/0": np.arange(12, dtype="float32").reshape(3, 4),
    "weight/1": np.array(3, "int64"),
    "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "empty": np.zeros((0, 2)),
    "flags": np.array([True, False]),
}


def write(folder, *steps, keep=3):
    return [Checkpoints(folder, keep).write(step, Checkpoint({"step": step}, ARRAYS)) for step in steps]


def steps_in(folder):
    return sorted(int(path.name[5:14]) for path in folder.glob("*.npz"))


def truncate(data):
    return data[: len(data) // 2]
