"""The verdict of `easyscale verify` on numbers worked out by hand, and what is recorded for it."""

import os
import sys

import numpy as np
import pytest

from easyscale.cli.verify import verdict
from easyscale.cli.verify.recorded import Recorded
from easyscale.errors import EasyScaleError
from easyscale.verify.recorder import FITS, Finished, Recorder

MEAN = {"name": "loss", "aggregations": ["sum", "sum"], "is_mean": True}


class Run:
    """Records what a test says that the ranks of a run did, in one optimizer and one model."""

    def __init__(self, folder, ranks, metrics=(MEAN,), states=(), steps=5):
        self._folder = folder
        self.ranks = [Recorder(str(folder), rank, steps) for rank in range(ranks)]
        for rank in self.ranks:
            rank.describe_optimizer(0, "sgd", ["kernel", "bias"])
            rank.describe_model(list(metrics), list(states))

    def step(self, kernel, bias=0.0, metrics=(), dtype="float64"):
        """One update, with the same weights on all ranks; and the states of the metrics of each rank after it."""
        for rank, states in zip(self.ranks, metrics or [None] * len(self.ranks), strict=True):
            rank.update(0, np.array(kernel, dtype), np.array([bias], dtype))
            if states is not None:
                rank.end_step(0, *map(np.array, states))

    def batches(self, *all_ranks):
        """Before `step`'s end: the samples of each rank."""
        for rank, samples in zip(self.ranks, all_ranks, strict=True):
            rank.batch(np.array(samples, "float32"), np.arange(len(samples)) * 0)

    def end(self):
        for rank in self.ranks:
            rank.write()
        return Recorded(str(self._folder), len(self.ranks))


@pytest.fixture
def runs(tmp_path):
    """A function that returns a run on one process, and one on two."""

    def make(**options):
        made = []
        for ranks in (1, 2):
            folder = tmp_path / str(ranks)
            folder.mkdir()
            made.append(Run(folder, ranks, **options))
        return made

    return make


def test_equal_steps_are_equal_and_what_was_compared_is_said(runs):
    reference, several = runs()
    for update in (1, 2):
        reference.step([update, 2.0, 3.0], metrics=[(8.0 * update, 8.0 * update)])
        several.step([update, 2.0, 3.0 + 5e-9], metrics=[(3.0 * update, 4.0 * update), (5.0 * update, 4.0 * update)])
    for kind, name in (("switched_off", "shuffling"), ("switched_off", "dropout"), ("switched_off", "shuffling")):
        reference.ranks[0].note(kind, name)
    assert verdict.compare(reference.end(), several.end()) == verdict.Verdict(
        True,
        [
            "2 steps, 2 weights of 4 elements in float64: max difference 5.0e-09 (tolerance 1e-08)",
            "metric loss: no difference (tolerance 1e-08)",
            "switched off for the comparison: shuffling, dropout",
        ],
    )


def test_the_first_step_and_weight_that_differ_are_named(runs):
    reference, several = runs()
    for kernel, other in (([1.0, 1.0], [1.0, 1.0]), ([2.0, 2.0], [2.0, 2.25]), ([3.0, 3.0], [9.0, 9.0])):
        reference.step(kernel)
        several.step(other)
    equal, lines = verdict.compare(reference.end(), several.end())
    assert not equal
    assert lines[0] == "first difference: step 2, `kernel` by 2.5e-01 in 1 of 2 elements (tolerance 1e-08)"
    assert len(lines) == 2
    assert lines[1].startswith("hint: data may not be divided by `easyscale.shard`")


@pytest.mark.parametrize(
    ("dtype", "tolerance", "difference", "equal"),
    [
        ("float64", None, 2e-8, False),
        ("float32", None, 9e-6, True),
        ("float32", None, 2e-5, False),
        ("float64", 1e-3, 9e-4, True),
        ("float64", 0.0, 1e-15, False),
        ("float64", 0.0, 0.0, True),
    ],
)
def test_the_tolerance_follows_from_the_dtype_unless_it_is_given(runs, dtype, tolerance, difference, equal):
    reference, several = runs()
    reference.step([0.0], dtype=dtype)
    several.step([difference], dtype=dtype)
    found, lines = verdict.compare(reference.end(), several.end(), tolerance)
    assert found == equal
    assert any("--tolerance" in line for line in lines) != equal  # so little may be rounding


def test_a_metric_that_differs_is_told_by_its_mean_over_all_ranks(runs):
    reference, several = runs()
    reference.step([1.0], metrics=[(8.0, 8.0)])
    several.step([1.0], metrics=[(3.0, 4.0), (7.0, 4.0)])
    _, lines = verdict.compare(reference.end(), several.end())
    assert lines[0] == (
        "first difference: step 1, whose weights are equal, but metric `loss` is 1 on one process, 1.25 on 2 processes"
    )


def test_samples_that_are_counted_twice_are_a_difference(runs):
    reference, several = runs()
    reference.step([1.0], metrics=[(8.0, 8.0)])
    several.step([1.0], metrics=[(8.0, 8.0), (8.0, 8.0)])
    _, lines = verdict.compare(reference.end(), several.end())
    assert lines[0].endswith("but metric `loss` counts 8 samples on one process, 16 on 2 processes")
    assert lines[1].startswith("hint: in step 1 one process trains on 8 samples, 2 processes on 16. Divide the data")


@pytest.mark.parametrize(
    ("samples", "hint"),
    [
        (
            ([1, 2], [3, 4]),
            "data are divided rightly: up to step 1 all processes together have the samples of one. What",
        ),
        (
            ([1, 2, 3, 4], [1, 2, 3, 4]),
            "in step 1 one process trains on 4 samples, 2 processes on 8. Divide the data by",
        ),
        (([1, 2], [1, 4]), "in step 1 1 of the 4 samples that one process trains on are not those of 2 processes. "),
    ],
    ids=["divided", "not divided", "divided otherwise"],
)
def test_which_samples_steps_are_made_of_tells_wrong_data_from_a_loss_over_a_whole_batch(runs, samples, hint):
    reference, several = runs()
    reference.step([1.0])
    several.step([1.5])
    reference.batches([1, 2, 3, 4])
    several.batches(*samples)
    reference.ranks[0].end_step(0, np.array(8.0), np.array(1.0))
    for rank in several.ranks:
        rank.end_step(0, np.array(8.0), np.array(1.0))
    _, lines = verdict.compare(reference.end(), several.end())
    assert len(lines) == 2
    assert lines[1].startswith(f"hint: {hint}")


def test_the_first_steps_of_each_fit_are_recorded_and_named(runs):
    reference, several = runs(steps=2)
    for run in (reference, several):
        for fit in (1, 2):
            for rank in run.ranks:
                rank.begin_fit()
            for step in range(4):
                wrong = run is several and (fit, step) == (2, 1)
                run.step([10.0 * fit + step + wrong], metrics=[(1.0, 1.0)] * len(run.ranks))
                assert [rank.has_enough for rank in run.ranks] == [step > 0] * len(run.ranks)
            for rank in run.ranks:
                rank.end_fit()
    reference.ranks[0].note("failed", "IndexError: no such epoch")
    recorded = reference.end()
    assert [recorded.weights(update)["kernel"][0] for update in (1, 2, 3, 4)] == [10.0, 11.0, 20.0, 21.0]
    assert len(recorded.updates) == 4
    _, lines = verdict.compare(recorded, several.end())
    assert lines[0].startswith("first difference: step 2 of fit() number 2, `kernel` by 1.0e+00")
    assert lines[-1] == "not compared: what follows IndexError: no such epoch"
    assert verdict.compare(recorded, recorded).lines[0].startswith("4 steps in 2 fits, 2 weights of 2 elements")


def test_the_last_of_the_fits_that_are_compared_ends_the_script(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "dup2", lambda *files: None)
    run = Run(tmp_path, 1, steps=1)
    for _ in range(FITS - 1):
        run.ranks[0].begin_fit()
        run.step([1.0], metrics=[(1.0, 1.0)])
        run.ranks[0].end_fit()
    run.ranks[0].begin_fit()
    run.ranks[0].end_fit()  # of a model that is not distributed
    run.ranks[0].begin_fit()
    with pytest.raises(Finished):
        run.step([1.0], metrics=[(1.0, 1.0)])


def test_metrics_are_joined_as_they_say(runs):
    sums = {"name": "matrix", "aggregations": ["sum", "mean", "only_first_replica"], "is_mean": False}
    reference, several = runs(metrics=[sums])
    reference.step([1.0], metrics=[([4.0, 6.0], 2.5, 7.0)])
    several.step([1.0], metrics=[([1.0, 2.0], 2.0, 7.0), ([3.0, 4.0], 3.0, 9.0)])
    assert verdict.compare(reference.end(), several.end()).equal


def test_variables_that_are_not_trained_are_compared_on_the_chief(runs):
    reference, several = runs(metrics=[], states=["moving_mean"])
    reference.step([1.0], metrics=[([0.5],)])
    several.step([1.0], metrics=[([0.75],), ([0.0],)])
    _, lines = verdict.compare(reference.end(), several.end())
    assert lines[0].endswith("step 1, `moving_mean` by 2.5e-01 (tolerance 1e-08), which is not trained")


def test_a_rank_that_drifts_from_the_chief_is_named(runs):
    reference, several = runs()
    reference.step([1.0])
    several.ranks[0].update(0, np.array([1.0]), np.array([0.0]))
    several.ranks[1].update(0, np.array([1.0]), np.array([1e-12]))
    _, lines = verdict.compare(reference.end(), several.end())
    assert lines[0] == "first difference: step 1, `bias` on rank 1 is not that of rank 0"


def test_fewer_steps_are_a_difference(runs):
    reference, several = runs()
    for run, steps in ((reference, 3), (several, 1)):
        for _ in range(steps):
            run.step([1.0])
    _, lines = verdict.compare(reference.end(), several.end())
    assert lines[0] == "first difference: one process takes 3 steps, 2 processes take 1"


def test_of_several_optimizers_the_one_is_named_and_its_own_steps_are_counted(runs):
    reference, several = runs()
    for run, second in ((reference, 2.0), (several, 4.0)):
        for rank in run.ranks:
            rank.describe_optimizer(1, "adam", ["kernel"])
        for kernel in (1.0, second):
            run.step([1.0])
            for rank in run.ranks:
                rank.update(1, np.array([kernel]))
    _, lines = verdict.compare(reference.end(), several.end())
    assert lines[0] == "first difference: step 2 of adam, `kernel` by 2.0e+00 (tolerance 1e-08)"


@pytest.mark.parametrize(
    ("reference_sums", "several_sums", "line"),
    [
        ([[1e6]], [[1e6 + 1e-3]], "1 allreduce of 1 element in float64: max difference 1.0e-09 (tolerance 1e-08)"),
        ([[1.0, 2.0]], [[1.0, 4.0]], "first difference: `allreduce 1` by 1.0e+00 in 1 of 2 elements (tolerance 1e-08)"),
        ([[1.0], [1.0]], [[1.0]], "first difference: one process calls allreduce 2 times, 2 processes 1"),
        ([[1.0]], [[1.0, 1.0]], "first difference: allreduce 1 sums 1 element on one process, 2 on 2 processes"),
    ],
)
def test_where_nothing_is_trained_sums_are_compared_by_their_size(runs, reference_sums, several_sums, line):
    reference, several = runs()
    for run, vectors in ((reference, reference_sums), (several, several_sums)):
        for vector in vectors:
            for rank in run.ranks:
                rank.sum(np.array(vector))
    assert verdict.compare(reference.end(), several.end()).lines[0] == line


def test_numbers_that_are_not_finite_are_no_ground_for_a_verdict(runs):
    reference, several = runs()
    reference.step([np.nan])
    several.step([np.nan])
    with pytest.raises(EasyScaleError, match="numbers must be finite .* Received: `kernel` after step 1 is not"):
        verdict.compare(reference.end(), several.end())


# What is recorded


def test_each_of_several_optimizers_is_recorded_for_as_many_steps(tmp_path):
    recorder = Recorder(str(tmp_path), 0, steps=2)
    recorder.update(0, np.zeros(1))
    recorder.update(1, np.zeros(1))
    recorder.update(0, np.zeros(1))
    assert not recorder.complete
    recorder.end_if_complete()
    recorder.update(1, np.zeros(1))
    assert recorder.complete


def test_half_types_are_written_as_numbers_that_numpy_knows(tmp_path):
    import ml_dtypes

    recorder = Recorder(str(tmp_path), 0, steps=1)
    recorder.describe_optimizer(0, "sgd", ["kernel"])
    recorder.update(0, np.array([1.5, -2.0], ml_dtypes.bfloat16))
    recorder.write()
    np.testing.assert_array_equal(Recorded(str(tmp_path), 1).weights(1)["kernel"], [1.5, -2.0])


def test_sums_end_a_script_only_where_no_training_can_follow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", os)
    recorder = Recorder(str(tmp_path), 0, steps=1)
    recorder.sum(np.ones(1))
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setattr(os, "dup2", lambda *files: None)
    with pytest.raises(Finished):
        recorder.end_if_complete()
