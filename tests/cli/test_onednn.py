"""oneDNN's kernels are at work where they are faster, and where the user wants them; who could have them is told.

TensorFlow itself asks the processor. What it would do on one of an older kind is asked of /proc/cpuinfo, in whose place
these tests put a file.
"""

import os
import shlex
import subprocess
import sys

import other_backends
import pytest

from easyscale import onednn

OLDER, NEWER = "fpu sse4_2 avx avx2 fma", "fpu avx2 fma avx512f avx512_vnni"
SHOW = "import os, sys; sys.stdout.write(os.environ.get('TF_ENABLE_ONEDNN_OPTS', 'none') + '\\n')"
SWITCHED = {"TF_ENABLE_ONEDNN_OPTS": "1", "EASYSCALE_SWITCHED_ONEDNN": "1"}
FIT = """
import keras, numpy as np
import easyscale
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for verbose in (0, 2, 2):
    model.fit(np.ones((4, 2)), np.ones(4), verbose=verbose, callbacks=[easyscale.callbacks.Distribute()])
"""
MAY_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
needs_mount = pytest.mark.skipif(not MAY_MOUNT, reason="needs root, and util-linux")


@pytest.fixture
def python_on(tmp_path):
    """A function that runs Python where the processor has these features, and nobody has said anything of oneDNN."""

    def run(features, *arguments, **variables):
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text(f"processor\t: 0\nmodel name\t: one\nflags\t\t: {features}\n\nprocessor\t: 1\n")
        line = f"mount --bind {cpuinfo} /proc/cpuinfo && exec {shlex.join([sys.executable, *map(str, arguments)])}"
        environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
        pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", line], env=environment | variables, timeout=120, **pipes
        )

    return run


@pytest.mark.full
@pytest.mark.parametrize("features", [OLDER, NEWER])
def test_it_is_switched_on_where_tensorflow_would_not_and_it_is_faster(features):
    has = features.split()
    expected = SWITCHED if features == OLDER else {}
    assert onednn.variables("auto", {}, has) == expected
    assert onednn.variables("auto", {}, ["fpu", "sse4_2", "avx"]) == {}  # not known to be faster
    assert onednn.variables("auto", {"TF_ENABLE_ONEDNN_OPTS": "0"}, has) == {}
    assert onednn.variables("on", {"TF_ENABLE_ONEDNN_OPTS": "0"}, has) == {"TF_ENABLE_ONEDNN_OPTS": "1"}
    assert onednn.variables("off", {}, has) == {"TF_ENABLE_ONEDNN_OPTS": "0"}


@needs_mount
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("features", "options", "variables", "seen"),
    [
        (OLDER, [], {}, "1"),
        (NEWER, [], {}, "none"),
        (OLDER, ["--onednn", "off"], {}, "0"),
        (NEWER, ["--onednn", "on"], {}, "1"),
        (OLDER, [], {"TF_ENABLE_ONEDNN_OPTS": "0"}, "0"),
        (OLDER, [], {"EASYSCALE_ONEDNN": "off"}, "0"),
        (OLDER, ["--onednn", "auto"], {"EASYSCALE_ONEDNN": "off"}, "1"),
    ],
)
def test_ranks_start_with_what_was_chosen_and_nothing_is_said_of_it_where_nothing_computes(
    python_on, script, ranks, features, options, variables, seen
):
    launch = ["-m", "easyscale", "launch", "-n", ranks, *options, script(SHOW)]
    done = python_on(features, *launch, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == sorted([seen, "[1]", seen][: 2 * ranks - 1])


@needs_mount
def test_the_line_that_would_run_shows_it(python_on, script):
    done = python_on(OLDER, "-m", "easyscale", "launch", "-n", 1, "--dry-run", script(SHOW))
    assert done.stdout.startswith("TF_ENABLE_ONEDNN_OPTS=1 ") and done.stderr == ""


def test_another_word_is_refused(cli, script):
    done = cli("launch", "--onednn", "fast", script(SHOW))
    assert done.exit_code == 2 and "'fast' is not one of 'auto', 'on', 'off'" in done.output


@needs_mount
def test_without_the_launcher_a_fit_says_once_what_it_would_bring(python_on, script):
    path = script(FIT)
    done = python_on(OLDER, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"EasyScale: {onednn.ADVICE}\n") == done.stdout.count("oneDNN's kernels") == 1
    assert "oneDNN's kernels" not in python_on(OLDER, path, TF_ENABLE_ONEDNN_OPTS="0").stdout


@pytest.mark.full
@needs_mount
def test_a_fit_on_tensorflow_says_that_the_launcher_has_switched_it_on(python_on, script):
    launch = ["-m", "easyscale", "launch", "-n", 2]
    done = python_on(OLDER, *launch, script(FIT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("TensorFlow, oneDNN on (unless --onednn off)\n") == 1
    assert "TensorFlow, oneDNN on\n" in python_on(OLDER, *launch, script(FIT), TF_ENABLE_ONEDNN_OPTS="1").stdout


@pytest.mark.full
@pytest.mark.parametrize("other", other_backends.OTHERS.values(), ids=other_backends.OTHERS)
def test_nothing_is_said_of_it_on_another_backend(other, script):
    command = [*other.easyscale, "launch", "-n", "1", script(FIT)]
    done = subprocess.run(command, env={**os.environ, **SWITCHED}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "oneDNN" not in done.stdout and "easyscale:" not in done.stderr


@pytest.mark.parametrize(("choice", "is_on"), [("on", True), ("off", False)])
def test_tensorflow_does_as_it_is_told(ranks, script, choice, is_on):
    path = script("import tensorflow")
    environment = ranks.environment | {"TF_CPP_MIN_LOG_LEVEL": "0"}
    done = ranks.run("launch", "-n", "1", "--onednn", choice, path, env=environment)
    assert done.returncode == 0, done.stderr
    assert ("oneDNN custom operations are on" in done.stderr) == is_on
