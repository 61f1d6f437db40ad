"""`easyscale plan`: the model by hand, what was measured, and bad input."""

import json

import pytest

from easyscale import exchange
from easyscale.cli.plan import measured
from easyscale.cli.plan.model import (
    Groups,
    Machine,
    Pipelines,
    crossover_bytes,
    crossovers,
    exchange_seconds,
    plan,
    slowest,
)
from easyscale.exchange.exchange import Path

SLOW = Machine(compute=1.0, latency=0.001, bandwidth=1e6, memory=1e7)


def _named(*names):
    return {name: exchange.get(name) for name in names}


@pytest.mark.parametrize(
    ("name", "size", "options", "path"),
    [
        ("ring", 4, {}, Path(6, 1800, 2700)),  # 2 * 1200 * 3 / 4
        ("tree", 4, {}, Path(4, 4800, 7200)),  # up and down two levels
        ("tree", 5, {}, Path(4, 7200, 10800)),  # three children, of whom one passes on a grandchild's
        ("tree", 8, {}, Path(6, 7200, 10800)),
        ("shared_memory", 4, {"local_size": 4}, Path(0, 0, 2400)),
        ("shared_memory", 4, {"local_size": 2}, None),
        ("hierarchical", 8, {"local_size": 2}, Path(6, 1800, 3750)),  # a ring of 4 nodes with lanes of 600 bytes
        ("hierarchical", 4, {"local_size": 4}, Path(0, 0, 2400)),
        ("hierarchical", 8, {}, None),
        ("parameter_server", 4, {"servers": 2}, Path(8, 4800, 7200)),  # 4 workers push 600 bytes to each server
        ("parameter_server", 4, {}, Path(6, 1800, 2700)),
        ("parameter_server", 4, {"local_size": 4}, Path(0, 0, 2400)),
        ("mpi", 4, {}, None),
    ],
)
def test_critical_paths_by_hand(name, size, options, path):
    assert exchange.get(name).critical_path(size, 1200, **options) == path


def test_an_exchange_takes_the_sum_of_its_three_parts():
    assert exchange_seconds(Path(6, 1_800_000, 2_700_000), SLOW) == pytest.approx(0.006 + 1.8 + 0.27)


def test_a_step_by_hand():
    machine = SLOW._replace(overlap=0.25, spread=0.1)
    alone, together = plan(_named("ring"), [1, 4], 1_200_000, machine)
    assert (alone.seconds, alone.speedup, alone.efficiency) == (1.0, 1.0, 1.0)
    taken = 0.006 + 1.8 + 0.27
    assert together.exchange_seconds == pytest.approx(taken)
    assert together.hidden == pytest.approx(0.25 * taken)
    assert together.waiting == pytest.approx(0.1 * slowest(4))
    assert together.seconds == pytest.approx(1 + 0.1 * slowest(4) + 0.75 * taken)
    assert together.speedup == pytest.approx(4 / together.seconds)


def test_no_more_is_hidden_than_the_backward_pass_takes():
    (step,) = plan(_named("ring"), [4], 12_000_000, SLOW._replace(overlap=1.0))
    assert step.hidden == pytest.approx(2 / 3)


def test_workers_that_nobody_waits_for_wait_for_nobody():
    machine = SLOW._replace(spread=0.1, servers=1)
    steps = plan(_named("parameter_server", "parameter_server:async"), [4], 1000, machine)
    assert [step.waiting > 0 for step in steps] == [True, False]


def test_a_step_of_pipelines_by_hand():
    machine = Machine(compute=1.2, latency=0.001, bandwidth=1e6, memory=1e9, overlap=0.5)
    pipelines = Pipelines(stages=3, microbatches=4, activations=8000)
    alone, one, ring = plan(_named("ring"), [1, 3, 6], 300_000, machine, pipelines=pipelines)
    assert (alone.ranks, alone.speedup, pipelines.bubble) == (1, 1.0, pytest.approx(1 / 3))
    # A third of the work, in 4 of 6 turns; two crossings of 2000 bytes on the way there and two back.
    passes = 1.2 / 3 * 6 / 4 + 4 * (0.001 + 0.002)
    assert (one.exchange, one.seconds) == ("one pipeline", pytest.approx(passes))
    assert one.efficiency == pytest.approx(1.2 / passes / 3)
    path = exchange.get("ring").critical_path(2, 100_000)
    assert ring.exchange_seconds == pytest.approx(exchange_seconds(path, machine))
    assert ring.seconds == pytest.approx(passes + ring.exchange_seconds)
    assert ring.speedup == pytest.approx(2 * 1.2 / ring.seconds)


def test_stages_of_one_node_share_its_link_and_cross_in_memory():
    machine = Machine(compute=1.0, latency=0.0, bandwidth=1e6, memory=1e9, ranks_per_node=4)
    worker = Pipelines(stages=2, microbatches=1, activations=1000).machine(machine)
    assert (worker.bandwidth, worker.ranks_per_node) == (5e5, 2)
    assert worker.compute == pytest.approx(1.0 + 2 * 1e-6)


def test_a_step_of_groups_by_hand():
    machine = Machine(compute=1.2, latency=0.001, bandwidth=1e6, memory=1e9)
    groups = Groups(ranks=3, share=0.75, within=9000, pairs=2)
    alone, one, ring = plan(_named("ring"), [1, 3, 6], 300_000, machine, groups=groups)
    # A quarter of the work, and a third of the rest; 8 messages of each pair, and two thirds of the bytes both ways.
    step = 1.2 * (0.25 + 0.25) + 16 * 0.001 + 2 * 2 / 3 * 9000 / 1e6
    # Two thirds of a quarter of the gradients, of which in two groups a rank owns half.
    alike = 2 * 0.001 + 2 / 3 * 75_000 / 1e6
    assert (alone.speedup, one.exchange, one.seconds) == (1.0, "one group", pytest.approx(step + alike))
    path = exchange.get("ring").critical_path(2, 150_000)
    taken = exchange_seconds(path, machine) + 2 * 0.001 + 2 / 3 * 37_500 / 1e6
    assert ring.exchange_seconds == pytest.approx(taken)
    assert ring.seconds == pytest.approx(step + ring.exchange_seconds)
    assert ring.speedup == pytest.approx(2 * 1.2 / ring.seconds)


def test_stages_of_groups_have_messages_for_each_microbatch_and_share_their_link():
    machine = Machine(compute=1.0, latency=0.001, bandwidth=1e6, memory=1e9, ranks_per_node=2)
    worker = Groups(ranks=2, share=1.0, within=2000).machine(machine, microbatches=4)
    assert worker.compute == pytest.approx(0.5 + 16 * 0.001 + 2000 / 1e9)
    assert (worker.bandwidth, worker.ranks_per_node) == (5e5, 1)
    pipelines = Pipelines(stages=2, microbatches=4, activations=1000)
    (one,) = plan(_named("ring"), [4], 1000, machine, pipelines=pipelines, groups=Groups(2, 1.0, 2000))
    assert one.seconds == pytest.approx(worker.compute / 2 * 5 / 4 + 2 * (0.001 + 250 / 5e5))


def test_a_plan_of_stages_on_groups(cli):
    options = ("--stages", "2", "--group", "2", "--split", "0.8", "--within", "64KB", "--pairs", "12")
    done = cli("plan", *options, "--ranks", "1,4,8", "--model", "vgg16", "--activations", "400KB")
    told = " ".join(done.stdout.split())
    assert "groups of 2 ranks have a stage, and divide 80% of the weights: 64.0 KB of a sample" in told
    assert "a rank has 166.0 MB of 553.4 MB of weights" in told
    assert "one pipeline" in done.stdout


def test_a_plan_of_pipelines(cli):
    done = cli("plan", "--stages", "4", "--ranks", "1,4,8", "--model", "vgg16", "--activations", "400KB")
    assert "pipelines of 4 stages, 8 micro-batches: a stage waits for 27% of a pass" in done.stdout
    assert "a rank has 138.4 MB of 553.4 MB of weights" in done.stdout
    assert "one pipeline" in done.stdout


def test_the_tree_wins_where_messages_are_short():
    ring, tree = _named("ring", "tree").values()
    nbytes = crossover_bytes(ring, tree, 64, SLOW)

    def seconds(candidate, size):
        return exchange_seconds(candidate.critical_path(64, size), SLOW)

    assert seconds(ring, nbytes // 2) > seconds(tree, nbytes // 2)
    assert seconds(ring, nbytes * 2) < seconds(tree, nbytes * 2)
    assert seconds(ring, nbytes) == pytest.approx(seconds(tree, nbytes), rel=0.01)
    assert crossover_bytes(tree, ring, 64, SLOW) is None


def test_crossovers_name_the_fastest_from_each_number_of_ranks_on():
    ranks = [2**power for power in range(1, 11)]
    changes = crossovers(plan(_named("ring", "tree"), ranks, 100_000, SLOW._replace(bandwidth=1e8, memory=1e9)))
    assert [name for _, name in changes] == ["ring", "tree"]
    assert crossovers(plan(_named("ring"), [1], 100, SLOW)) == []


def _rows(name="ring", ranks=2, times=None, cores=2):
    times = {1000: 1.0, 2000: 2.0, 4000: 6.0} if times is None else times
    return [
        {"exchange": name, "ranks": ranks, "cores": cores, "bytes": size, "median": time}
        for size, time in times.items()
    ]


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [(1000, 1.0), (1500, 1.5), (3000, 4.0), (4000, 6.0), (5000, 8.0), (500, 0.5), (0, 0.0)]
)
def test_measured_times_lie_on_lines_between_sizes(nbytes, seconds):
    assert measured.Node(_named("ring"), _rows()).seconds("ring", 2, nbytes) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("times", "nbytes", "seconds"),
    [
        ({1000: 1.0}, 10, 1.0),
        ({1000: 1.0}, 3000, 3.0),
        ({1000: 3.0, 2000: 1.0}, 0, 3.0),  # never more than at the smallest size
        ({1000: 3.0, 2000: 1.0}, 9000, 1.0),  # nor less than at the largest
    ],
)
def test_beyond_the_measured_sizes_a_line_goes_on_as_far_as_it_makes_sense(times, nbytes, seconds):
    assert measured.interpolate(times, nbytes) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("name", "ranks", "cores", "steps", "volume"),
    [
        ("ring", 4, 8, 7, 1800),  # one more step for the start
        ("ring", 4, 2, 14, 3600),  # two ranks on each core
        ("ring", 3, 2, 1.75 * 5, 1.75 * 1600),  # two on the fullest core, 1.5 on each if it is shared out
        ("shared_memory", 4, 4, 1, 2400),
        ("mpi", 2, 2, 3, 1200),
        ("mpi", 4, 2, 10, 3600),
        ("mpi", 3, 2, 5, 3600),  # the third rank hands all to another, and gets all back
    ],
)
def test_work_of_an_exchange_by_hand(name, ranks, cores, steps, volume):
    assert measured.work(exchange.get(name), ranks, 1200, cores) == pytest.approx((steps, volume))


def test_other_numbers_of_ranks_are_scaled_from_the_nearest_of_their_kind():
    node = measured.Node(_named("ring"), _rows(ranks=2, cores=8, times={1000: 2.0, 2000: 3.0}))
    assert node.most == 8
    assert node.seconds("ring", 4, 2000) == pytest.approx(1.0 * 7 / 3 + 2.0 * 3000 / 2000)  # alpha is 1
    assert node.seconds("ring", 9, 2000) is None
    assert node.seconds("tree", 2, 2000) is None
    crowded = measured.Node(_named("ring"), _rows(ranks=4))
    assert not crowded.knows(2) and crowded.knows(3) and crowded.knows(4)


def test_each_size_is_checked_by_the_others():
    rows = measured.left_out([*_rows(), *_rows(ranks=4, times={1000: 1.0, 2000: 2.0})])
    assert [(row["ranks"], row["bytes"]) for row in rows] == [(2, 2000)]
    assert rows[0]["predicted"] == pytest.approx(1 + 5 / 3)


def _exchange_json(path, cores=2, ranks=2, servers=0):
    rows = [
        {"exchange": name, "bytes": size, "median": 1e-4 + size * 1e-9, "times": []}
        for name in ("ring", "tree")
        for size in (1000, 100_000, 10_000_000)
    ]
    machine = {"ranks": ranks, "cores": cores, "cpu": "a processor", "servers": servers}
    path.write_text(json.dumps({"benchmark": "exchange", "machine": machine, "rows": rows}))


def _fit_json(path, model="mlp"):
    rows = [{"exchange": "Keras, 1 process", "batch": 16, "median": 0.5, "times": [0.4, 0.5, 0.9]}]
    path.write_text(json.dumps({"benchmark": "fit", "machine": {}, "wanted": {"model": model}, "rows": rows}))


def test_a_plan_is_a_table_json_and_a_plot(cli, tmp_path):
    files = ["--json", tmp_path / "a.json", "--plot", tmp_path / "a.png"]
    machine = ["--bandwidth", "10Gbit", "--latency", "20us", "--exchanges", "ring,tree"]
    result = cli("plan", "--model", "resnet50", "--ranks", "1,8,64,1024", *machine, *files)
    assert result.exit_code == 0, result.stderr
    assert "resnet50, 25.6 M weights" in result.stdout
    assert "fastest from 2 ranks on: ring" in result.stdout
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["plan"]["bytes"] == 4 * 25_583_592
    ring = {step["ranks"]: step for step in written["steps"] if step["exchange"] == "ring"}
    sent = 2 * 4 * 25_583_592 * 7 / 8
    assert ring[8]["exchange_seconds"] == pytest.approx(14 * 20e-6 + sent / 1.25e9 + 1.5 * sent / 20e9)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_of_what_was_measured(cli, tmp_path):
    _exchange_json(tmp_path / "exchange.json")
    _fit_json(tmp_path / "fit.json")
    files = [
        "--measured",
        tmp_path / "exchange.json",
        "--measured",
        tmp_path / "fit.json",
        "--json",
        tmp_path / "a.json",
    ]
    result = cli(
        "plan", "--model", "mlp", "--batch-size", "16", "--ranks", "1,2,8", "--overlap", "0", "--spread", "0", *files
    )
    assert result.exit_code == 0, result.stderr
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["plan"]["compute"] == 0.5
    nbytes = 4 * 24_202_250
    steps = {(step["ranks"], step["exchange"]): step["seconds"] for step in written["steps"]}
    for name in ("ring", "tree"):
        assert steps[2, name] == pytest.approx(0.5 + 1e-4 + nbytes * 1e-9, rel=0.1)
    assert steps[8, "ring"] == pytest.approx(0.5 + 2 * nbytes * 7 / 8 * (1 / 1.25e9 + 1.5 / 20e9), rel=0.01)
    assert "up to 2 ranks as measured on 2 cores (a processor)" in result.stdout
    assert [(row["exchange"], row["bytes"]) for row in written["checked"]] == [("ring", 100_000), ("tree", 100_000)]
    assert all(row["predicted"] == pytest.approx(row["median"]) for row in written["checked"])  # all on a line


def test_what_was_measured_must_be_what_is_planned(cli, tmp_path):
    four, servers, other = (tmp_path / name for name in ("four.json", "servers.json", "other.json"))
    _exchange_json(four, ranks=4)
    _exchange_json(servers, ranks=3, servers=1)
    _exchange_json(other, cores=4)
    for arguments, message in (
        (
            ["--ranks", "2,4", "--measured", four],
            "Received: 4 ranks on 2 cores, and --ranks 2. Add what easyscale bench",
        ),
        (["--measured", servers], "as many servers as the plan. Received: 1 servers, and --servers 0"),
        (
            ["--ranks", "4", "--measured", four, "--measured", other],
            "of one machine. Received: machines of [2, 4] cores",
        ),
        (["--measured", four, "--exchanges", "mpi"], "must have times of the exchanges of the plan"),
    ):
        result = cli("plan", *arguments)
        assert result.exit_code == 1
        assert message in result.stderr and result.stderr.count("\n") == 1
    assert cli("plan", "--ranks", "4", "--measured", four).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "resnet"], "Received: --model='resnet'. Did you mean 'resnet50'?"),
        (["--ranks", "0"], "--ranks must be numbers from 1 to 999999999, with commas. Received: --ranks 0"),
        (["--ranks", "9" * 5000], "--ranks must be numbers from 1 to 999999999"),
        (["--ranks", "²"], "--ranks must be numbers from 1 to 999999999"),
        (["--ranks", "4", "--servers", "5"], "--servers must be no more than the workers. Received: --servers 5"),
        (["--stages", "2", "--ranks", "1,4,7"], "--ranks must be multiples of --stages, or 1. Received: --ranks 1,4,7"),
        (["--group", "2", "--ranks", "1,3"], "--ranks must be multiples of --group, or 1. Received: --ranks 1,3"),
        (["--group", "2", "--ranks", "4", "--split", "2"], "--split must be from 0 to 1. Received: --split 2.0"),
        (["--group", "2", "--ranks", "4", "--servers", "1"], "--group must be without --servers"),
        (["--stages", "2", "--ranks", "4", "--microbatches", "64"], "--microbatches must be no more than the samples"),
        (["--stages", "2", "--ranks", "4", "--servers", "1"], "--stages must be without --servers"),
        (["--stages", "0"], "--stages must be 1 or more. Received: --stages 0"),
        (["--activations", "x"], "--activations: a size must be a number and a unit. Received: 'x'"),
        (["--spread", "nan"], "--spread must be 0 or more. Received: --spread nan"),
        (
            ["--batch-size", "many"],
            "--batch-size must be a whole number. Received: 'many'. See `easyscale plan --help`",
        ),
        (
            ["--ranks", "6", "--ranks-per-node", "4"],
            "--ranks must fill nodes of --ranks-per-node 4. Received: --ranks 6",
        ),
        (["--bandwidth", "10"], "--bandwidth: a bandwidth must be a number above 0 and a unit. Received: '10'"),
        (["--latency", "x"], "--latency: a time must be a number and one of"),
        (["--overlap", "1.5"], "--overlap must be from 0 to 1"),
        (["--batch-size", "0"], "--batch-size must be 1 or more. Received: --batch-size 0"),
        (["--weights", "38M"], "--weights needs --compute, the time of a step. Received: --weights 38M"),
        (["--weights", "9" * 400, "--compute", "1s"], "--weights: a count must be a number of 1 or more"),
        (["--weights", "many"], "--weights: a count must be a number of 1 or more"),
        (["--compute", "0s"], "--compute must be a time above 0"),
        (["--measured", "/nowhere/a.json"], "/nowhere/a.json, which cannot be read (No such file or directory)"),
        (["--measured", "setup.cfg"], "--measured must be a file that"),
        (["--exchanges", "shared_memory"], "--exchanges must be some that can be planned for these ranks"),
        (["--json", "/nowhere/a.json"], "--json must be a file in a folder that exists and may be written"),
    ],
)
def test_bad_input_is_one_line(cli, arguments, message):
    result = cli("plan", *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        '{"benchmark":',
        '{"rows": 5}',
        "[]",
        '{"benchmark": "exchange", "machine": {"ranks": 2, "cores": 2}, "rows": [{"exchange": "ring", "bytes": 1, '
        '"median": 1}]}',
        '{"benchmark": "exchange", "machine": {"ranks": 2, "cores": 2, "cpu": "x"}, "rows": [{"exchange": "ring", '
        '"bytes": 1, "median": "1"}]}',
        '{"benchmark": "exchange", "machine": {"ranks": 2, "cores": 2, "cpu": "x"}, "rows": [{"exchange": "ring", '
        '"bytes": 1, "median": NaN}]}',
        '{"benchmark": "fit", "wanted": {}, "rows": [{"exchange": "ring", "batch": 1, "median": 1, "times": [1]}]}',
        '{"benchmark": "exchange", "machine": {}, "rows": []}',
        '{"benchmark": "x", "rows": []}',
    ],  # fmt: skip
)
def test_json_that_is_something_else_is_one_line(cli, tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    result = cli("plan", "--measured", tmp_path / "a.json")
    assert result.exit_code == 1
    assert "--measured must be a file that" in result.stderr and result.stderr.count("\n") == 1


def test_steps_of_another_model_are_refused(cli, tmp_path):
    _fit_json(tmp_path / "fit.json", "vgg16")
    result = cli("plan", "--model", "mlp", "--batch-size", "16", "--measured", tmp_path / "fit.json")
    assert "must have steps of the planned model and batch. Received: vgg16 with --batch-size [16]" in result.stderr
