"""`easyscale bench suite`: cells, tables, what goes on after a kill, and bad input."""

import json
import os
import time

import pytest

from easyscale.cli.suite import cells, report, running
from easyscale.cli.suite.cells import OOM, Cell

SMALL, LARGE = Cell("cifar10", 4, 1), Cell("cifar10", 4, 2)


def _found(ranks, seconds):
    rows = [
        {"ranks": ranks, "exchange": name, "median": seconds, "p10": seconds, "p90": seconds,
         "samples_per_second": 4 / seconds, "efficiency": 0.5 / seconds, "speedup": ranks * 0.5 / seconds}
        for name in ("ring", "no exchange", "Keras, 1 process")
    ]  # fmt: skip
    return {"machine": {"cores": 2}, "rows": rows, "seconds": 10.0}


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3 GiB", 1, OOM),
        ("OOM when allocating tensor with shape[64,224]", 1, OOM),
        ("terminate called after throwing an instance of 'std::bad_alloc'", -6, OOM),
        ("easyscale: rank 1 on a was killed by signal 9 (Killed)", 137, OOM),
        ("", -9, OOM),
        ("Traceback\nValueError: a shape is wrong", 1, "ValueError: a shape is wrong"),
        ("ValueError: there is no room", 1, "ValueError: there is no room"),
        ("nothing of use", 3, "ended with exit code 3"),
    ],
)
def test_what_a_cell_that_failed_says(text, code, reason):
    assert cells._reason(text, code) == reason


def test_tables_by_hand(tmp_path):
    found = {SMALL: _found(1, 0.5), LARGE: _found(2, 0.25), Cell("cifar10", 64, 2): {"failed": OOM}}
    found[Cell("mlp", 4, 1)] = {"failed": "ValueError: so"}
    report.write(str(tmp_path), found, {"steps": 2})
    lines = (tmp_path / "tables.txt").read_text().splitlines()
    assert lines[0] == "ring: samples/s of all ranks"
    assert [line.split() for line in lines[2:6]] == [
        ["model", "batch", "1", "rank", "2", "ranks"],
        ["cifar10", "4", "8.0", "32.0"],  # 4 samples in 0.5 s; in 0.25 s on each of two
        ["cifar10", "64", "OOM"],
        ["mlp", "4", "failed"],
    ]
    assert "| cifar10 | 4 | 100% | 200% |" in (tmp_path / "tables.md").read_text()
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["settings"] == {"steps": 2}
    assert [row.get("failed") for row in written["rows"]].count(OOM) == 1
    assert (tmp_path / "cifar10.png").read_bytes().startswith(b"\x89PNG")


def test_in_graph_stands_beside_between_graph(tmp_path):
    def found(name, seconds):
        row = {"ranks": 2, "exchange": name, "median": seconds, "p10": seconds, "p90": seconds, "speedup": 1.0,
               "samples_per_second": 4 / seconds, "efficiency": 0.5}  # fmt: skip
        return {"machine": {}, "rows": [row], "seconds": 1.0}

    in_graph = LARGE._replace(replication="in_graph")
    assert (in_graph.name, str(in_graph)) == ("cifar10-batch4-ranks2-in_graph", "cifar10, batch 4, 2 devices")
    cells_ = {LARGE: found("ring", 0.5), in_graph: found("ring, in-graph", 0.25)}
    cells_[Cell("mlp", 4, 2)] = found("ring", 1.0)
    cells_[Cell("mlp", 4, 2, "in_graph")] = {"failed": OOM}
    *_, last = report.text(cells_).split("\n\n")
    lines = last.splitlines()
    assert lines[0] == "samples/s of all ranks, beside each other"
    assert [line.split() for line in lines[2:]] == [
        ["model", "batch", "ranks", "ring", "ring,", "in-graph"],
        ["cifar10", "4", "2", "16.0", "32.0"],
        ["mlp", "4", "2", "8.0", "OOM"],
    ]


def test_the_command_makes_in_graph_cells_from_two_devices_on(monkeypatch, cli, tmp_path):
    asked = {}
    monkeypatch.setattr(running, "run", lambda folder, cells, *_: asked.update(cells))
    options = ["--models", "cifar10", "-n", "1,2", "--batch-sizes", "4", "--exchanges", "ring,mpi"]
    assert cli("bench", "suite", "--out", tmp_path, *options).exit_code == 0
    in_graph = LARGE._replace(replication="in_graph")
    assert list(asked) == [SMALL, LARGE, in_graph]
    assert [asked[cell][1] for cell in asked] == ["ring,mpi", "ring,mpi", "ring"]


def test_time_left_is_that_of_cells_of_the_same_model():
    taken = {SMALL: 10.0, LARGE: 20.0, Cell("vgg16", 4, 1): 300.0}
    assert running._time_left(taken, [Cell("cifar10", 8, 1)]) == "about 15 s left"
    assert running._time_left(taken, [Cell("vgg16", 8, 1)] * 2) == "about 10 min left"
    assert running._time_left(taken, [Cell("mlp", 8, 1)]) == "about 2 min left"  # 110 s, the mean of all
    assert running._time_left({}, [SMALL]) == ""


def _run(monkeypatch, folder, measure, settings=None):
    monkeypatch.setattr(running, "measure", measure)
    running.run(str(folder), {SMALL: [], LARGE: []}, settings or {"steps": 2}, 10**9, 60)


def test_finished_cells_are_not_measured_again_and_failed_ones_are(monkeypatch, tmp_path, capsys):
    measured = []

    def measure(folder, cell, options, memory, timeout):
        measured.append(cell)
        found = _found(cell.ranks, 0.5) if cell is SMALL or len(measured) > 2 else {"failed": "so", "seconds": 1.0}
        (tmp_path / "cells" / f"{cell.name}.json").write_text(json.dumps(found))
        return found

    _run(monkeypatch, tmp_path, measure)
    _run(monkeypatch, tmp_path, measure)
    assert "1 of 2 cells are in" in capsys.readouterr().err
    _run(monkeypatch, tmp_path, measure)
    assert measured == [SMALL, LARGE, LARGE]


def test_a_folder_of_other_settings_is_refused(monkeypatch, tmp_path):
    _run(monkeypatch, tmp_path, lambda *_: {"failed": OOM, "seconds": 1.0})
    with pytest.raises(Exception, match="must have the same settings. Received: --steps 5, and 2 of the cells"):
        _run(monkeypatch, tmp_path, None, {"steps": 5})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": []', '{"rows": 5}'])
def test_cells_and_settings_that_are_no_such_thing(monkeypatch, tmp_path, text):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / f"{SMALL.name}.json").write_text(text)
    assert cells.read(str(tmp_path / "cells"), SMALL) is None
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(Exception, match="must have the same settings. Received: --steps 2, and None of the cells"):
        _run(monkeypatch, tmp_path, None)


def test_two_suites_in_one_folder_are_refused(monkeypatch, tmp_path):
    def measure(*_):
        with pytest.raises(Exception, match="must have one suite at a time"):
            running.run(str(tmp_path), {SMALL: []}, {"steps": 2}, 10**9, 60)
        return {"failed": OOM, "seconds": 1.0}

    _run(monkeypatch, tmp_path, measure)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "resnet"], "Received: --models='resnet'. Did you mean 'resnet50'?"),
        (
            ["--batch-sizes", "0"],
            "--batch-sizes must be numbers from 1 to 999999999, with commas. Received:",
        ),
        (["-n", "two"], "-n must be numbers from 1"),
        (["--optimizer", "nonsense"], "`--optimizer` must be one of"),
        (["--exchanges", "rign"], "Did you mean 'ring'?"),
        (["--image-size", "32"], "--image-size must be 63 or more for alexnet. Received: --image-size 32"),
        (["--replication", "graph"], "`--replication` must be one of"),
        (["--exchanges", "mpi"], "with --replication in_graph. Received: --exchanges='mpi'"),
        (["--replication", "in_graph", "-n", "1"], "-n must have 2 or more with --replication in_graph alone"),
        (["--timeout", "0"], "--timeout must be a number of seconds above 0. Received: --timeout 0"),
        (["--timeout", "nan"], "--timeout must be a number of seconds above 0. Received: --timeout nan"),
        (["--memory", "8XB"], "--memory: the unit of a size must be one of"),
        (["--out", "/proc/nothing"], "--out must be a folder that may be written. Received: --out /proc/nothing"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(cli, tmp_path, arguments, message):
    result = cli("bench", "suite", "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("easyscale bench suite: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.full
def test_a_killed_suite_goes_on_and_a_cell_without_room_says_so(ranks, tmp_path):
    out = tmp_path / "out"
    options = ["--models", "cifar10", "--image-size", "8", "-n", "1", "--batch-sizes", "2,20000000"]
    options += ["--steps", "1", "--rounds", "1", "--exchanges", "auto", "--optimizer", "sgd", "--out", out]
    options += ["--replication", "between_graph"]
    first = out / "cells" / "cifar10-batch2-ranks1.json"
    started = ranks.start("bench", "suite", *options)
    end = time.monotonic() + 120
    while not first.exists() and time.monotonic() < end:
        time.sleep(0.1)
    started.kill()
    started.wait()
    assert ranks.wait_until_gone() == []
    before = os.stat(first).st_mtime_ns
    done = ranks.run("bench", "suite", *options, timeout=150)
    assert done.returncode == 0, done.stderr
    assert os.stat(first).st_mtime_ns == before
    assert "1 of 2 cells are in" in done.stderr
    rows = [line.split() for line in (out / "tables.txt").read_text().splitlines() if line.startswith("cifar10")]
    assert rows[0][:2] == ["cifar10", "2"] and float(rows[0][2].replace(",", "")) > 0
    assert rows[1] == ["cifar10", "20000000", "OOM"]
