"""The machine that draws scripts: some of its cases, and whether it finds what it is to find."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from fuzz.case import Case, draw
from fuzz.compare import compare, compare_ranks, compare_resumed
from fuzz.dimensions import DIMENSIONS
from fuzz.dimensions.parallel import is_pipelined, is_split, pipelines, refused
from fuzz.pool import Broken, Job, Pool
from fuzz.script import launch_options, render
from fuzz.search import Search
from fuzz.shrink import shrink
from fuzz.trial import Trial, Verdict
from fuzz.worker import Reply, Task

on_ranks = [pytest.mark.xdist_group("fuzz")]


def _drawn(seed):
    return draw(seed, {"workers": "2", "replication": "between_graph", "servers": "0", "model_parallel": "none"})


# Of the first cases one for each exchange and update that meet, which has the most; the others are marked `full`.
SEEDS = range(36)
REFUSED = {23, 25, 27, 34}  # others stand for their pairs, if there are any
_by_pair = {
    (case["exchange"], case["update"]): case.seed
    for case in sorted(map(_drawn, sorted({*SEEDS} - REFUSED)), key=lambda case: len(case.chosen))
}
EACH_PAIR = sorted(_by_pair.values())

# Some of two workers that divide the model; of more, marked `full`.
PARALLEL = [draw(seed, {"model_parallel": "pipeline"}) for seed in (800002, 800003, 800004)] + [
    draw(seed, {"model_parallel": "split"}) for seed in (810002, 810006, 810013)
]
PARALLEL_OF_MORE = [draw(seed, {"model_parallel": "pipeline"}) for seed in (800000, 800001)] + [
    draw(seed, {"model_parallel": "split"}) for seed in (810008, 810011, 810019)
]

# Cases that differed once. The last ones are run always, the others are marked `full`.
ALWAYS = 6
FOUND = [
    '{"seed": 3100188, "style": "unbuilt", "samples": "25", "resume": "behind step 2"}',
    '{"seed": 20068, "body": "attention", "outputs": "dict", "loss": "LogCosh", "optimizer": "Adam", "samples": "31", '
    '"reduction": "mean_with_sample_weight", "weights": "random"}',
    '{"seed": 80091, "outputs": "dict", "samples": "31", "run_eagerly": "yes"}',
    '{"seed": 100028, "replication": "in_graph", "wrapped": "by hand", "precision": "mixed_float16"}',
    '{"seed": 120094, "body": "words", "norm": "synchronized batch, slow", "loss": "CosineSimilarity", '
    '"optimizer": "easyscale.SGD"}',
    '{"seed": 201004, "replication": "in_graph", "norm": "synchronized batch", "add_loss": "mean"}',
    '{"seed": 100141, "servers": "1", "third": "train_on_batch, fit"}',
    '{"seed": 200000, "samples": "25", "optimizer": "Adam", "resume": "behind step 2"}',
    '{"seed": 140218, "source": "mapped dataset", "steps_per_epoch": "2"}',
    '{"seed": 140319, "gradient_accumulation_steps": "2", "second": "train_on_batch, fit"}',
    '{"seed": 150235, "servers": "1", "body": "large embedding", "norm": "unit", "activity_regularizer": "l2", '
    '"optimizer": "Muon", "clip": "global norm"}',
    '{"seed": 160107, "replication": "in_graph", "body": "lstm", "samples": "2", "second": "predict, fit"}',
    '{"seed": 160287, "norm": "batch", "second": "train_on_batch, fit"}',
    '{"seed": 160703, "optimizer": "momentum", "second": "train_on_batch, fit", "third": "train_on_batch, fit"}',
    '{"seed": 160734, "optimizer": "Nadam", "scaled": "yes", "resume": "raises as an epoch begins"}',
    '{"seed": 170027, "replication": "in_graph", "weight_decay": "0.1", "exclude": "biases", "scaled": "yes"}',
    '{"seed": 170120, "norm": "synchronized batch", "gradient_accumulation_steps": "2", "samples": "25"}',
    '{"seed": 300010, "optimizer": "Muon", "samples": "25", "run_eagerly": "yes"}',
    '{"seed": 300013, "workers": "3", "exchange": "ring", "norm": "batch", "resume": "behind step 1"}',
    '{"seed": 410047, "replication": "in_graph", "body": "embedding", "optimizer": "Adadelta", '
    '"second": "train_on_batch, fit"}',
    '{"seed": 160844, "workers": "3", "replication": "in_graph", "regularizer": "l2", "samples": "2"}',
    '{"seed": 500428, "steps_per_epoch": "1", "resume": "fewer epochs"}',
    '{"seed": 500428, "steps_per_epoch": "1", "epochs": "3", "samples": "25", "resume": "behind step 2", "every": "1"}',
    '{"seed": 840000, "model_parallel": "pipeline", "optimizer": "Adafactor", "second": "fit"}',
    '{"seed": 930032, "model_parallel": "pipeline", "body": "large embedding", "optimizer": "Adam", '
    '"clip": "global norm"}',
    '{"seed": 940024, "workers": "4", "model_parallel": "pipeline", "source": "mapped dataset", '
    '"steps_per_epoch": "2"}',
    '{"seed": 950000, "workers": "4", "model_parallel": "pipeline", "reduction": "sum", "validation": "data"}',
    '{"seed": 910206, "samples": "48", "callback": "ModelCheckpoint, after steps", '
    '"resume": "raises as an epoch begins"}',
    '{"seed": 1300009, "model_parallel": "split", "body": "large embedding", "step": "own, in two", '
    '"second": "train_on_batch, fit"}',
    '{"seed": 0, "workers": "3", "exchange": "ring", "norm": "spectral", "samples": "25", "optimizer": "SGD"}',
    '{"seed": 0, "exchange": "ring", "validation": "whole data", "reduction": "sum", "outputs": "dict"}',
]

# Draws


def test_a_seed_draws_the_same_case_again():
    assert [str(draw(seed)) for seed in range(50)] == [str(draw(seed)) for seed in range(50)]
    assert len({str(draw(seed)) for seed in range(50)}) == 50


def test_every_value_is_drawn():
    drawn = {item for seed in range(6000) for item in draw(seed).items()}
    assert drawn == {(name, value) for name, dimension in DIMENSIONS.items() for value in dimension.values}


def test_most_drawn_pipelines_and_splits_have_nothing_that_is_refused():
    cases = [draw(seed) for seed in range(2400)]
    for chosen, least in ((is_pipelined, 200), (is_split, 100)):
        drawn = list(filter(chosen, cases))
        assert len(drawn) > least
        assert sum(any(refused(case)) for case in drawn) < len(drawn) / 4
    assert {pipelines(case) for case in cases} == {0, 1, 2}


def test_every_case_is_a_script_and_a_line_that_says_which():
    for seed in range(300):
        case = draw(seed)
        compile(render(case), "case", "exec")
        compile(render(case, perturbed=1), "case", "exec")
        assert str(Case.parse(str(case))) == str(case)


def test_a_value_that_does_not_fit_is_the_simplest():
    assert Case(0, {"loss": "MeanSquaredError", "metrics": "auc"})["metrics"] == "none"
    with pytest.raises(ValueError, match="`optimizer` must be one of"):
        Case(0, {"optimizer": "Sgd"})


# Comparison


def test_differences_are_those_that_are_not_promised():
    case, seen = Case(0, {}), {"fit": {"weights": [[1.0, 2.0]], "history": {"loss": [4.0]}}}
    assert compare(case, seen, seen) is None
    near = {"fit": {"weights": [[1.0, 2.0 + 1e-9]], "history": {"loss": [4.0]}}}
    far = {"fit": {"weights": [[1.0, 2.5]], "history": {"loss": [4.0]}}}
    assert compare(case, seen, near) is None
    assert 0 < compare(case, seen, near, tolerance=0.0).gap < 1e-8
    difference = compare(case, seen, far)
    assert difference.gap == 0.25
    assert difference.text == "fit / weights / 0 / 1 differs by 2.5e-01 (tolerance 1e-08)"
    assert compare(case.but(norm="batch"), seen, far) is None
    both = {"uninterrupted": seen, "resumed": near}
    pipelined = case.but(norm="batch", model_parallel="pipeline")
    assert compare(pipelined, seen, far).gap == 0.25
    assert compare(pipelined.but(microbatches="2"), seen, far) is None
    assert compare(pipelined.but(workers="4"), seen, far) is None
    by_batches = case.but(model_parallel="pipeline", outputs="dict", validation="uneven data")
    held, other = ({"history": {"loss": [1.0], "val_one_loss": [value]}} for value in (1.0, 2.0))
    assert compare(by_batches, held, other).gap == 1.0
    assert compare(by_batches.but(workers="4"), held, other) is None
    packed = case.but(compression="bf16", precision="float32", exchange="ring")
    assert compare(packed, seen, {"fit": {"weights": [[1.0, 2.05]], "history": {"loss": [4.0]}}}) is None
    assert compare(packed, seen, far).text.endswith("differs by 2.5e-01 (tolerance 1e-01)")
    assert compare(packed.but(compression="one_bit"), seen, far) is None
    assert compare(packed.but(compression="one_bit"), seen, {"fit": {}}).text.endswith("is there on one side only")
    for exact in ({"precision": "float64"}, {"exchange": "shared_memory"}, {"workers": "1"}):
        assert compare(packed.but(**exact, compression="one_bit"), seen, far).gap == 0.25
    assert compare_resumed(case, both) == ""
    assert (
        compare_resumed(case.but(resume="behind step 1"), both)
        == "fit / weights / 0 / 1 has other bits behind a checkpoint"
    )
    assert compare_ranks(case, {0: seen, 1: near}) == "fit / weights / 0 / 1 is another on rank 1 than on rank 0"
    assert compare(case, seen, {"fit": {"weights": [[1.0, 2.0]]}}).text.endswith("is there on one side only")


# Shrinking and reports, of cases that nobody trains


def test_a_case_shrinks_to_what_its_failure_needs():
    case = Case(3, {"workers": "3", "exchange": "tree", "body": "conv", "clip": "norm", "epochs": "3", "samples": "25"})
    small = shrink(case, lambda drawn: drawn["clip"] == "norm" and drawn["workers"] != "2")
    assert small.chosen == {"workers": "1", "clip": "norm"}


def test_what_a_backend_does_without_stays_in_a_smaller_case():
    case = Case(3, {"workers": "3", "precision": "float32", "body": "conv", "clip": "norm", "epochs": "3"})
    small = shrink(case, lambda drawn: drawn["clip"] == "norm", keep=["precision"])
    assert small.chosen == {"precision": "float32", "clip": "norm"}


class Scripted:
    """Fails where `fails(case, alone)` says so."""

    def __init__(self, fails):
        self.run = lambda case, alone=False: Verdict("differs", "by much") if fails(case, alone) else Verdict("equal")


def _searched(fails, case, folder):
    console = Console(record=True, width=200, quiet=False, file=open(os.devnull, "w"))  # noqa: SIM115
    search = Search(Scripted(fails), console, folder)
    search.look(case)
    return search, console.export_text()


@pytest.mark.full
def test_what_fails_is_shrunk_and_printed_with_its_script(tmp_path):
    case = Case(7, {"optimizer": "Lamb", "epochs": "3"})
    search, text = _searched(lambda case, alone: case["optimizer"] == "Lamb", case, tmp_path)
    assert '{"seed": 7, "optimizer": "Lamb"}' in text
    assert (tmp_path / "case-7.py").read_text() == render(Case(7, {"optimizer": "Lamb"}))
    search.look(Case(8, {"optimizer": "Lamb", "samples": "25"}))
    assert search.counts == {"differs": 1, "found again": 1}


@pytest.mark.full
def test_what_fails_only_behind_others_is_told_apart(tmp_path):
    search, text = _searched(lambda case, alone: not alone, Case(7, {}), tmp_path)
    assert "depends on what ran before" in text
    assert search.failed and not search.found


class OneThatFailsAlone:
    """A pool in which one process ends with an error, and several die."""

    def train(self, options, task, alone=False, variables=None):
        if options is None:
            return {0: Reply(error="InvalidArgumentError", message="cannot compute Mul", is_ours=False)}, []
        failed = Broken("death", {}, "TypeError: Input 'y' of 'Mul' Op has type float64")
        failed.before = []
        raise failed


@pytest.mark.full
def test_what_one_process_cannot_train_is_no_failure_of_several():
    assert Trial(OneThatFailsAlone()).run(Case(0, {"exchange": "async"})).kind == "skipped"


# On ranks


@pytest.fixture(scope="module")
def pool():
    with Pool() as pool:
        yield pool


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(
            [_drawn(seed) for seed in EACH_PAIR], marks=[*on_ranks, pytest.mark.full], id="each-exchange-and-update"
        ),
        pytest.param(PARALLEL, marks=[*on_ranks, pytest.mark.full], id="pipelines-and-splits"),
        pytest.param(PARALLEL_OF_MORE, marks=[*on_ranks, pytest.mark.full], id="pipelines-and-splits-of-more"),
        pytest.param([Case.parse(case) for case in FOUND[-ALWAYS:]], marks=on_ranks, id="found"),
        pytest.param(
            [Case.parse(case) for case in FOUND[:-ALWAYS]], marks=[*on_ranks, pytest.mark.full], id="found before"
        ),
        pytest.param(
            [_drawn(seed) for seed in sorted({*SEEDS} - {*EACH_PAIR})], marks=[*on_ranks, pytest.mark.full], id="others"
        ),
    ],
)
def test_drawn_cases_train_as_one_process(pool, cases):
    trial = Trial(pool)
    with ThreadPoolExecutor(2) as executor:
        verdicts = list(executor.map(trial.run, cases))
    found = list(zip(cases, verdicts, strict=True))
    assert [f"{case}: {verdict.kind}: {verdict.detail}" for case, verdict in found if verdict.fails] == []
    assert sum(verdict.kind == "equal" for verdict in verdicts) > len(cases) * 3 // 4


def _marked(function):
    for mark in on_ranks:
        function = mark(function)
    return function


# Runs before each script, on each rank.
DROPS_AN_ELEMENT = """
import easyscale.exchange.ring as ring

def drop(exchange, buffer, reduce=getattr(ring.Ring, "whole", ring.Ring._reduce)):
    first = buffer[:1].copy()
    reduce(exchange, buffer)
    buffer[:1] = first

ring.Ring.whole, ring.Ring._reduce = getattr(ring.Ring, "whole", ring.Ring._reduce), drop
"""
SLEEPS = "import time\nif easyscale.rank() == 1: time.sleep(3600)"


@pytest.mark.full
@_marked
def test_an_exchange_that_drops_an_element_is_found_and_shrunk(pool, tmp_path):
    console = Console(file=open(os.devnull, "w"))  # noqa: SIM115
    search = Search(Trial(pool, DROPS_AN_ELEMENT), console, tmp_path)
    verdict = search.look(Case(2, {"exchange": "ring", "update": "replicated", "samples": "31", "rate": "cosine"}))
    assert verdict.kind == "differs"
    assert [small.chosen for small, _ in search.found] == [{"exchange": "ring"}]


# As it was once: a worker without data for the checkpoint's step has the checkpoint's state an epoch late.
PUTS_BACK_LATE = """
from easyscale.training.checkpointing import Checkpointing

Checkpointing.end_data = lambda checkpointing: None
"""


@pytest.mark.full
@_marked
def test_state_that_comes_late_from_a_checkpoint_is_found(tmp_path):
    case = Case(2, {"samples": "25", "optimizer": "Adam", "resume": "behind step 2"})
    with Pool() as faulty:
        verdict = Trial(faulty, PUTS_BACK_LATE).run(case)
    assert verdict.fails, verdict


@_marked
def test_a_refusal_is_told_from_an_error(pool):
    verdict = Trial(pool).run(Case(1, {"optimizer": "Lamb", "update": "sharded"}))
    assert verdict.kind == "refused"
    assert "`update='sharded'` needs an optimizer that treats each element" in verdict.detail
    verdict = Trial(pool, "1 / 0").run(Case(1, {}))
    assert verdict.kind == "error"
    assert verdict.detail == "ZeroDivisionError: division by zero"


@pytest.mark.full
@_marked
def test_a_rank_that_hangs_is_told_with_its_stack():
    job = Job(launch_options(Case(0, {})), limit=3.0)
    pids = list(job.pids)
    with pytest.raises(Broken) as raised:
        job.train(Task(render(Case(0, {})), SLEEPS))
    assert raised.value.kind == "hang"
    assert 'File "setup"' in raised.value.output
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.full
@_marked
def test_a_script_that_is_printed_compares_by_itself(tmp_path):
    case = Case(4, {"body": "conv", "second": "evaluate, fit"})
    script = tmp_path / "case.py"
    script.write_text(render(case))
    command = [sys.executable, "-m", "easyscale", "launch", *launch_options(case), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    gaps = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if "differs by" in line]
    assert len(gaps) > 10
    assert max(gaps) < 1e-8
