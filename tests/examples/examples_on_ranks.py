"""Checks of the examples and of the README's Python, on ranks that are there already."""

import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

import documents
import keras
import numpy as np

import easyscale

ROOT = Path(__file__).parents[2]
SIZE = easyscale.size()
CHIEF = easyscale.is_chief()
_said = []  # by each example that has run


def _printed(example, *arguments):
    """Run an example; return what it prints, by the text before the colon, and its exit code."""
    out, code, argv = io.StringIO(), 0, sys.argv
    sys.argv = [example, *arguments]
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = argv
    _said.append(out.getvalue())
    return dict(line.split(": ", 1) for line in out.getvalue().splitlines() if ": " in line), code


def check_linear_regression_finds_one_line_alone_and_together():
    printed, _ = _printed("linear_regression.py")
    if not CHIEF:
        assert not printed
        return
    assert list(printed) == ["one machine", f"{SIZE} worker(s)"]
    lines = [[float(number) for number in re.findall(r"\d+\.\d+", line)] for line in printed.values()]
    np.testing.assert_allclose(lines[0], [3, 2], atol=0.01)
    np.testing.assert_allclose(lines[1], lines[0], atol=2e-5)


def check_custom_exchange_costs_what_it_says_and_trains_like_a_ring():
    printed, _ = _printed("custom_exchange.py")
    if CHIEF:
        sent = (SIZE - 1) * 1_000_000
        assert printed[f"to sum 1,000,000 bytes over {SIZE} ranks, rank 0 sent"] == f"{sent:,} (cost: {sent:,})"
        assert float(printed["weights by star and by ring differ by at most"]) <= 1e-5


def check_digits_compares_the_weights_of_all_ranks():
    fit = keras.Model.fit

    def fit_and_drift(model, *args, **kwargs):
        fit(model, *args, **kwargs)
        last = model.trainable_variables[-1]
        last.assign_add(np.full(last.shape, 1e-6 * easyscale.rank(), "float32"))

    keras.Model.fit = fit_and_drift
    try:
        printed, code = _printed("digits.py", "--epochs", "1", "--batch-size", "240", "--exchange", "tree")
    finally:
        keras.Model.fit = fit
    assert code == (SIZE > 1)
    if CHIEF:
        assert printed[f"equal weights on all {SIZE} ranks"] == ("yes" if SIZE == 1 else "no")


def check_the_example_for_kubernetes_goes_on_from_its_checkpoint():
    communicator = easyscale.communicator.get()
    with tempfile.TemporaryDirectory() as own:
        folder = communicator.all_gather_object(own)[0]
        for epochs in ("1", "2"):  # one epoch each time
            printed, _ = _printed("kubernetes/train.py", "--epochs", epochs, "--checkpoints", folder)
            assert (f"accuracy, trained by {SIZE} ranks" in printed) == CHIEF
            assert len(re.findall(r"^\d+/\d+ - .*loss: ", _said[-1], re.MULTILINE)) == CHIEF
        communicator.barrier()  # before the chief removes the folder


def check_large_batch_trains_the_digits_where_nothing_can_be_downloaded():
    def fails():
        raise Exception("URL fetch failure")

    load_data, keras.datasets.mnist.load_data = keras.datasets.mnist.load_data, fails
    options = ["--epochs", "1", "--seeds", "1", "--batches", "480", "--methods", "LARS", "--rates", "0.05,0.1"]
    try:
        printed, _ = _printed("large_batch.py", "--data", "mnist", *options)
    finally:
        keras.datasets.mnist.load_data = load_data
    if CHIEF:
        assert "mnist could not be loaded (URL fetch failure), so these are the digits of scikit-learn" in _said[-1]
        first, second, tested = printed
        assert (first, second, tested) == (
            "LARS (0.05, 0.1), batch 480",
            "LARS (0.1, 0.1), batch 480",
            "LARS, batch 480",
        )
        held_out = [float(printed[name].split("%")[0]) for name in (first, second)]
        best = first.split(",")[0] if held_out[0] >= held_out[1] else second.split(",")[0]
        assert printed[tested].endswith(f"with {best.removeprefix('LARS ')}, 0.1)")


def check_a_pipeline_takes_noise_out_of_digits():
    printed, _ = _printed("pipeline.py", "--epochs", "4", "--stages", str(max(2, SIZE)))
    if CHIEF:
        assert float(printed["error of the noisy images"]) > 0.08
        assert float(printed["error behind the model"]) < 0.04
        assert printed["equal weights on all processes"] == "yes"
    easyscale.callbacks.Distribute()  # each rank is a worker of its own again


def check_a_hybrid_learns_digits_with_fully_connected_layers_in_slices():
    accuracies = []
    for split in ("fc.*=columns", "fc1=rows,fc2=columns", ""):
        printed, _ = _printed("hybrid.py", "--epochs", "6", "--units", "128", "--split", split)
        if CHIEF:
            assert printed["equal weights on all processes"] == "yes"
            accuracies.append(float(printed["test accuracy"]))
    assert not CHIEF or (min(accuracies) > 0.8 and max(accuracies) - min(accuracies) <= 0.01)


def check_python_in_the_readme_and_in_pages_runs():
    if 256 % SIZE:
        return  # the README's global batch
    text = "".join((ROOT / page).read_text() for page in ("README.md", *documents.PAGES))
    blocks = dict.fromkeys(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) > 10
    for block in blocks:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(512, 4)).astype("float32")
        names = {"keras": keras, "np": np, "model": model, "x": x, "y": x.sum(axis=1, keepdims=True)}
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # it saves a model
            exec(compile(block, block, "exec"), names)  # an error names it
            os.chdir(ROOT)
        weights = [weight.tolist() for weight in model.get_weights()]
        all_ranks = easyscale.communicator.get().all_gather_object(weights)
        assert all(other == weights for other in all_ranks) or "model" not in block
