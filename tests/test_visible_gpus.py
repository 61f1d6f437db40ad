"""Each rank sees its own GPUs."""

import os
import subprocess
import sys

import pytest

from easyscale import launchers, visible_gpus

MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}


@pytest.fixture(autouse=True)
def undivided():
    visible_gpus._divided.clear()
    yield
    visible_gpus._divided.clear()


def _divided(tmp_path, local_rank, local_size, files=0, **variables):
    for number in range(files):
        (tmp_path / f"nvidia{number}").touch()
    (tmp_path / "nvidiactl").touch()
    here = {"OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size)}
    environment = {**MPI, **here, **variables}
    visible_gpus.divide(launchers.detect(environment), environment, str(tmp_path))
    return environment.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    "rank, size, files, said, expected",
    [
        (0, 2, 0, None, None),
        (1, 2, 1, None, None),
        (0, 1, 4, None, None),
        (1, 2, 2, None, "1"),
        (1, 2, 4, None, "2,3"),
        (3, 4, 2, None, "1"),
        (1, 2, 4, "5,7", "7"),
        (1, 2, 4, "5", "5"),
        (1, 2, 4, "", ""),
        (0, 2, 4, "GPU-a, GPU-b", "GPU-a"),
    ],
)
def test_each_rank_sees_its_share(tmp_path, rank, size, files, said, expected):
    variables = {} if said is None else {"CUDA_VISIBLE_DEVICES": said}
    assert _divided(tmp_path, rank, size, files, **variables) == expected
    assert visible_gpus.are_divided() == (expected not in (None, said))


def test_devices_in_graph_are_divided_by_their_strategy(tmp_path):
    assert _divided(tmp_path, 1, 2, 4, EASYSCALE_REPLICATION="in_graph") is None


def test_a_share_is_not_divided_again(tmp_path):
    assert _divided(tmp_path, 1, 2, 4) == "2,3"
    assert _divided(tmp_path, 1, 2, 4, CUDA_VISIBLE_DEVICES="2,3") == "2,3"


def test_a_rank_sees_its_own_as_soon_as_easyscale_is_imported():
    here = {**MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "CUDA_VISIBLE_DEVICES": "4,6"}
    line = "import os, easyscale; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    done = subprocess.run([sys.executable, "-c", line], env={**os.environ, **here}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("6\n", "")
