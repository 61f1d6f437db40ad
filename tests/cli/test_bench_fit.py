"""`easyscale bench fit`."""

import json

import pytest

from easyscale.bench import fit as bench_fit
from easyscale.cli.bench import fit_report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "1,x"], "-n must be numbers from 1 to 999999999, with commas. Received: -n 1,x"),
        (
            ["--batch-size", "0"],
            "--batch-size must be numbers from 1 to 999999999, with commas. Received:",
        ),
        (["--model", "resnet"], "Received: --model='resnet'. Did you mean 'resnet50'?"),
        (["--exchanges", "rign"], "Received: --exchanges='rign'. Did you mean 'ring'?"),
        (["--model", "inceptionv3", "--image-size", "64"], "--image-size must be 75 or more for inceptionv3. Received"),
        (["--model", "mlp", "--image-size", "64"], "--image-size is for models of images"),
        (["--optimizer", "nonsense"], "`--optimizer` must be one of ['adadelta', 'adafactor'"),
        (["--optimizer", "momentun"], "Received: --optimizer='momentun'. Did you mean 'momentum'?"),
        (["--replication", "in-graph"], "Received: --replication='in-graph'. Did you mean 'in_graph'?"),
        (
            ["--replication", "in_graph", "--exchanges", "mpi"],
            "with --replication in_graph. Received: --exchanges='mpi'",
        ),
        (["--steps", "0"], "--steps must be 1 or more. Received: --steps 0"),
        (["--json", "/nowhere/a.json"], "--json must be a file in a folder that exists and may be written"),
        (["--plot", "a.mp3"], "--plot must be a file that ends in one of ['.png', '.pdf', '.svg']"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(cli, arguments, message):
    result = cli("bench", "fit", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("easyscale bench fit: ")
    assert result.stderr.count("\n") == 1


def test_speed_up_and_efficiency_by_hand():
    rows = [
        {"ranks": 2, "batch": 32, "exchange": "ring", "times": [0.5, 0.4, 0.3]},
        {"ranks": 2, "batch": 32, "exchange": fit_report.ALONE, "times": [0.6, 0.6, 0.7]},
    ]
    ring, alone = fit_report.summarise(rows)
    assert (ring["median"], ring["p10"], ring["p90"]) == (0.4, 0.3, 0.5)
    assert ring["samples_per_second"] == pytest.approx(80)
    assert ring["efficiency"] == pytest.approx(1.5)
    assert ring["speedup"] == pytest.approx(3.0)
    assert alone["speedup"] == alone["efficiency"] == 1.0


def test_both_sides_use_the_same_names():
    assert (bench_fit.BOUND, bench_fit.ALONE) == (fit_report.BOUND, fit_report.ALONE)


@pytest.mark.full
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(["mobilenetv2", "--image-size", "32"], id="mobilenetv2", marks=pytest.mark.full),
        pytest.param(["cifar10"], id="cifar10"),
    ],
)
def test_two_ranks_make_a_table_json_and_a_plot(ranks, tmp_path, model):
    files = ["--json", tmp_path / "a.json", "--plot", tmp_path / "a.png"]
    options = ["--model", *model, "--batch-size", "2", "--steps", "2", "--rounds", "1"]
    done = ranks.run("bench", "fit", "-n", "2", *options, "--optimizer", "sgd", *files, timeout=180)
    assert done.returncode == 0, done.stderr
    assert [word for line in done.stdout.splitlines() for word in line.split()[2:3] if "%" in line] == [
        "auto", "no", "Keras,",
    ]  # fmt: skip
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["machine"]["ranks"] == 2
    assert [row["exchange"] for row in written["rows"]] == ["auto", fit_report.BOUND, fit_report.ALONE]
    assert all(len(row["times"]) == 2 and min(row["times"]) > 0 for row in written["rows"])
    (choice,) = written["choices"]
    assert choice["ranks"] == 2
    assert {timing["exchange"] for timing in choice["timings"]} >= {"mpi", "ring", "shared_memory", "tree"}
    (chosen,) = [line for line in done.stdout.splitlines() if line.split()[-1:] == ["chosen"]]
    assert chosen.split()[:3] == ["2", choice["chosen"]["exchange"], "one"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_devices_beside_stock_keras_on_as_many(ranks):
    options = ["--model", "cifar10", "--batch-size", "2", "--steps", "1", "--rounds", "1", "--exchanges", "ring"]
    done = ranks.run("bench", "fit", "-n", "2", "--replication", "in_graph", *options, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "ring, in-graph" in done.stdout
    assert "Keras's MirroredStrategy" in done.stdout
