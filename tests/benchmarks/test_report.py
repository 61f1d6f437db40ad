"""The tables of the benchmarks, by hand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from report import sums_table, training_table  # noqa: E402


def test_sums_stand_beside_each_other():
    milliseconds = {"shared_memory": 5, "ring": 20, "MPI_Allreduce": 12.5, "Gloo": 40}
    rows = [
        {"ranks": 2, "bytes": 100_000_000, "exchange": name, "times": [value / 1e3] * 3}
        for name, value in milliseconds.items()
    ]
    assert sums_table(rows)[2:] == ["| 2 | 100 MB | 5.0 ms | 20.0 ms | 12.5 ms | 40.0 ms | 2.5 | 8.0 |"]


def test_efficiency_is_that_of_each_process_beside_one_alone():
    seconds = {"EasyScale": (1.2, 1.0), "MultiWorkerMirroredStrategy": (1.0, 2.0), "PyTorch DDP": (0.3, 0.4)}
    rows = [
        {"workload": "resnet50", "stack": stack, "way": way, "times": [9.0, value, 0.1]}
        for stack, values in seconds.items()
        for way, value in zip(("alone", "together"), values, strict=True)
    ]
    assert training_table(rows)[2:] == [
        "| EasyScale | Keras 3 | 120% |",
        "| MultiWorkerMirroredStrategy | tf_keras | 50% |",
        "| PyTorch DDP | PyTorch | 75% |",
    ]
