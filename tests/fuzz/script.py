"""A case as a Keras script: what is run here, with and without EasyScale, and what a person runs who looks into it."""

import textwrap

from fuzz.case import Case
from fuzz.dimensions.data import GLOBAL_BATCH
from fuzz.sources import calls, data, model, parallel, resume
from fuzz.sources.forms import in_scope

__all__ = ["environment", "launch_options", "render"]

_HEAD = '''"""{title}

    easyscale launch {options} THIS_FILE

{case}
"""

import contextlib
import io
import itertools
import os
import pathlib
import tempfile
import zipfile

import h5py
import keras
import numpy as np
import tensorflow as tf
from keras import layers
{imports}{before}

def {begin}:
    """Train without EasyScale where `easyscale` is None, and return what can be seen of it."""
    keras.config.set_floatx("{floatx}")
    keras.config.set_dtype_policy("{policy}")
    keras.utils.set_random_seed({seed})
    generator = np.random.default_rng({seed})
{parallel}    batch = easyscale.local_batch({batch}) if easyscale else {size}
    seen = {{}}
'''

_FOOT = """

if __name__ == "__main__":
    import easyscale

    easyscale.scope()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as several:
        expected = train(None, one) if easyscale.is_chief() else None
        found = train(easyscale, several)
    if easyscale.is_chief():
        for (path, value), other in zip(keras.tree.flatten_with_path(expected), keras.tree.flatten(found), strict=True):
            gap = np.abs(np.asarray(value, "float64") - np.asarray(other, "float64")).max(initial=0)
            print(*path, f"differs by {gap:.1e}", sep=", ")
"""


def launch_options(case: Case) -> list[str]:
    """Return the options of `easyscale launch`."""
    options = ["-n", case["workers"], *["--auto"] * (case["auto"] == "yes")]
    if case["replication"] == "in_graph":
        options += ["--replication", "in_graph"]
    if case["servers"] != "0":
        options += ["--servers", case["servers"]]
    return options


def environment(case: Case) -> dict[str, str]:
    """Return the environment variables that the ranks need beside."""
    return {} if case["nodes"] == "1" else {"EASYSCALE_FUZZ_NODE_SIZE": case.source("nodes")}


def render(case: Case, perturbed: int = 0) -> str:
    """Return the source of a script whose `train(easyscale, folder)` returns what can be seen of training.

    Args:
        case: `Case`.
        perturbed: 1 or -1 if weights and losses are a rounding error away, one way or the other. Defaults to 0.
    """
    precision = case["precision"]
    before, train = resume.train(case) if case["resume"] != "no" else ("", "")
    head = _HEAD.format(
        title="What one process and several do differently.",
        options=" ".join(launch_options(case)),
        case=case,
        imports="from easyscale import optimizers as easyscale_optimizers\n" * ("easyscale" in case.source("optimizer"))
        + "from easyscale.backend.tensorflow import compiled_update\n" * bool(case.source("compiled")),
        before=before,
        begin="script(easyscale, folder, ends)" if train else "train(easyscale, folder)",
        floatx="float64" if precision == "float64" else "float32",
        policy=precision,
        seed=case.seed,
        batch=GLOBAL_BATCH,
        size=case.source("batch"),
        parallel=textwrap.indent(parallel.parallel(case).lstrip("\n"), "    "),
    )
    compiled_from = case.source("compiled")
    parts = [
        f"if easyscale:\n    compiled_update.XLA_FROM = {compiled_from}" if compiled_from else "",
        data.data(case),
        in_scope(case, model.model(case), builds=True),
        calls.compile_model(case, bool(perturbed)),
        calls.perturb(case, perturbed) if perturbed else "",
        "numbers = itertools.count(1)" if train else "",
        calls.fit(case),
        calls.others(case),
        "compile_model()",
        case.source("called_first"),
        "fit()",
        case.source("second"),
        case.source("third"),
        calls.see_files(case),
        "return seen",
    ]
    body = "\n".join(textwrap.indent(part.strip("\n"), "    ") for part in parts if part)
    return head + body + "\n" + train + _FOOT
