"""Arrays of a checkpoint that are read one by one."""

import ml_dtypes
import numpy as np
import pytest

from easyscale.checkpoint import file as checkpoint_file
from easyscale.checkpoint.folder import Checkpoint, Checkpoints
from easyscale.layout.specs import Spec

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "half": np.ones(3, ml_dtypes.bfloat16), "none": np.zeros((0, 2), "int32")}


def test_each_is_read_when_it_is_looked_up_and_known_before(tmp_path):
    Checkpoints(tmp_path).write(5, Checkpoint({"steps": 5}, ARRAYS))
    found, wrong = Checkpoints(tmp_path).read(checkpoint_file.open_whole)
    assert (found.about, wrong, list(found.arrays)) == ({"steps": 5}, {}, list(ARRAYS))
    for name, array in ARRAYS.items():
        assert found.arrays.spec(name) == Spec(array.shape, array.dtype)
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name] is not found.arrays[name]
    assert "json" not in found.arrays


def test_what_is_damaged_is_seen_before(tmp_path):
    folder = Checkpoints(tmp_path)
    folder.write(4, Checkpoint({"steps": 4}, ARRAYS))
    path = folder.write(8, Checkpoint({"steps": 8}, ARRAYS))
    data = bytearray(path.read_bytes())
    data[data.find(np.float64(4).tobytes())] ^= 1
    path.write_bytes(data)
    found, wrong = folder.read(checkpoint_file.open_whole)
    assert found.about == {"steps": 4} and list(wrong) == [path]


def test_an_array_that_comes_when_it_is_written_is_asked_for_once_in_the_order_of_the_file(tmp_path):
    asked = []

    class Later:
        dtype, nbytes = np.dtype("float64"), 48

        def __init__(self, name):
            self.name = name

        def __array__(self, dtype=None, copy=None):
            asked.append(self.name)
            return ARRAYS["a"]

    Checkpoints(tmp_path).write(5, Checkpoint({}, {"x": Later("x"), "half": ARRAYS["half"], "y": Later("y")}))
    assert asked == ["x", "y"]
    found, _ = Checkpoints(tmp_path).read()
    np.testing.assert_array_equal(found.arrays["y"], ARRAYS["a"])


def test_a_file_stays_readable_when_its_name_is_gone(tmp_path):
    path = Checkpoints(tmp_path).write(5, Checkpoint({}, ARRAYS))
    found, _ = Checkpoints(tmp_path).read(checkpoint_file.open_whole)
    path.unlink()
    np.testing.assert_array_equal(found.arrays["a"], ARRAYS["a"])
    with pytest.raises(KeyError):
        found.arrays["b"]
