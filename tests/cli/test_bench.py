"""`easyscale bench exchange`."""

import importlib.util
import json

import numpy as np
import pytest

from easyscale.bench import exchange
from easyscale.cli.bench import exchange_report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "1"], "an exchange needs 2 ranks or more. Received: -n 1"),
        (["--sizes", "4QB"], "the unit of a size must be one of ['B', 'KB', 'MB', 'GB', 'KiB', 'MiB', 'GiB']"),
        (["--exchanges", "ring,tre"], "Received: --exchanges='tre'. Did you mean 'tree'?"),
        (["--dtype", "float23"], "Received: --dtype='float23'. Did you mean 'float32'?"),
        (["--servers", "3"], "the number of servers must be from 0 to that of the workers. Received: --servers 3"),
        (["--servers", "1", "--exchanges", "ring"], "--servers needs exchanges that have some"),
        (["--repeats", "0"], "--repeats must be 1 or more"),
        (["--bandwidth", "0Mbit"], "--bandwidth: a bandwidth must be a number above 0 and a unit. Received: '0Mbit'"),
        (["--latency", "20"], "--latency: a time must be a number and one of ['ns', 'us', 'µs', 'ms', 's']"),
        (["--json", "/nowhere/a.json"], "--json must be a file in a folder that exists and may be written"),
        (["--plot", "/nowhere/a.png"], "--plot must be a file in a folder that exists"),
        (["--plot", "a.mp3"], "--plot must be a file that ends in one of ['.png', '.pdf', '.svg']"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(cli, arguments, message):
    result = cli("bench", "exchange", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("easyscale bench exchange: ")
    assert result.stderr.count("\n") == 1


def test_a_plot_without_matplotlib_names_the_command_that_installs_it(cli, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("bench", "exchange", "--plot", "a.png")
    assert result.exit_code == 1
    assert result.stderr == "easyscale: --plot needs matplotlib. Run: pip install 'easyscale[plot]'\n"


def test_servers_are_measured_with_the_exchange_that_has_them(ranks, tmp_path):
    options = ["--servers", "1", "--sizes", "4KB", "--repeats", "4", "--json", tmp_path / "a.json"]
    done = ranks.run("bench", "exchange", "-n", "2", *options, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "allreduce over 2 workers with 1 servers" in done.stdout
    written = json.loads((tmp_path / "a.json").read_text())
    assert (written["machine"]["ranks"], written["machine"]["servers"]) == (3, 1)
    assert [row["exchange"] for row in written["rows"]] == ["parameter_server"]


def test_two_ranks_make_a_table_json_and_a_plot(ranks, tmp_path):
    files = ["--json", tmp_path / "a.json", "--plot", tmp_path / "a.png"]
    options = ["--sizes", "4KB,1000B", "--exchanges", "ring,mpi", "--repeats", "4"]
    done = ranks.run("bench", "exchange", "-n", "2", *options, *files, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines() if "ring" in line] == [
        ["1KB", "ring"],
        ["4KB", "ring"],
    ]
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["machine"]["ranks"] == 2
    assert written["machine"]["mpi"]
    assert [(row["bytes"], row["exchange"]) for row in written["rows"]] == [
        (1000, "ring"), (1000, "mpi"), (4000, "ring"), (4000, "mpi"),
    ]  # fmt: skip
    assert all(len(row["times"]) == 4 and min(row["times"]) > 0 for row in written["rows"])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_over_a_slower_network_a_sum_takes_at_least_as_long_as_its_bytes_and_messages(ranks, tmp_path):
    options = ["--sizes", "100KB", "--bandwidth", "80Mbit", "--latency", "2ms", "--repeats", "3"]
    done = ranks.run("bench", "exchange", "-n", "2", *options, "--json", tmp_path / "a.json", timeout=60)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["machine"]["mpi"].endswith(" as over 80 Mbit/s, 2 ms")
    fastest = {row["exchange"]: min(row["times"]) for row in written["rows"]}
    assert {"hierarchical", "mpi", "ring", "tree"} <= {*fastest} and "shared_memory" not in fastest
    # In a ring of two each sends a half there and a half back, 5 ms each, and each is 2 ms on its way; in a tree the
    # whole goes there and back.
    assert fastest["ring"] >= 0.01 + 0.004 and fastest["tree"] >= 0.02 + 0.004


def test_a_wrong_sum_is_an_error():
    from easyscale.communicator import run_ranks
    from easyscale.exchange import Exchange, get

    class Wrong(Exchange):
        def _reduce(self, buffer):
            buffer += 1

        def _gather(self, buffer):
            pass

    said = []

    def on_rank(communicator):
        say = said.append if communicator.rank == 0 else lambda message: None
        exchanges = {"wrong": get(Wrong, communicator)}
        with pytest.raises(SystemExit):
            exchange.measure(communicator, exchanges, 400, "float32", 1, 0, say)

    run_ranks(2, on_rank)
    assert said[-1] == {"wrong": {"exchange": "wrong", "bytes": 400, "ranks": [0, 1]}}


def test_the_sum_is_known_in_closed_form():
    ranks = 3
    values = sum(exchange._values(40, np.dtype("float32"), rank) for rank in range(ranks))
    np.testing.assert_array_equal(exchange.expected(40, np.dtype("float32"), ranks), values)


def test_figures_follow_from_the_times():
    rows = [
        {"bytes": 1000, "exchange": "mpi", "times": [4.0, 2.0, 3.0]},
        {"bytes": 1000, "exchange": "ring", "times": [1.0, 2.0, 1.5]},
    ]
    mpi, ring = exchange_report.summarise(rows, ranks=4)
    assert (mpi["median"], mpi["p10"], mpi["p90"], mpi["ratio_to_mpi"]) == (3.0, 2.0, 4.0, 1.0)
    assert ring["ratio_to_mpi"] == 2.0
    assert ring["bus_bandwidth"] == 2 * 1000 * 3 / 4 / 1.5
