"""`easyscale verify`: its options, and real scripts, right and wrong."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from easyscale.cli.commands import verify
from easyscale.cli.verify import runs
from easyscale.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"


# The command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "1"], "the number of processes must be 2 or more. Received: -n 1"),
        (["--steps", "0"], "the number of steps must be 1 or more. Received: --steps 0"),
        (["--tolerance", "-1"], "the tolerance must be 0 or more. Received: --tolerance -1.0"),
        (["--tolerance", "nan"], "the tolerance must be 0 or more. Received: --tolerance nan"),
        (["--exchange", "rign"], "Received: --exchange='rign'. Did you mean 'ring'?"),
        (["-n"], "Option '-n' requires an argument."),
    ],
)
@pytest.mark.parametrize("script_first", [True, False])
def test_bad_options_are_refused(cli, script, arguments, message, script_first):
    if arguments == ["-n"] and not script_first:
        return  # the script would be its argument
    path = script("")
    result = cli("verify", *([path, *arguments] if script_first else [*arguments, path]))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("easyscale verify: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing.py", "Received: 'missing.py', which does not exist"), ("/", "Received: '/', which is a directory")],
)
def test_what_is_no_script_is_refused(cli, name, message):
    result = cli("verify", name)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("line", "ranks", "steps", "own"),
    [
        ("train.py", 2, 5, []),
        ("train.py -n 4", 4, 5, []),
        ("-n 4 train.py --epochs 3 -n 7", 4, 5, ["--epochs", "3", "-n", "7"]),
        ("--steps=3 train.py -n4 --epochs 3", 4, 3, ["--epochs", "3"]),
        ("train.py --np 3 --verbose --steps 2 x -n 7", 3, 2, ["x", "-n", "7"]),
        ("train.py -np 3 -- --steps 100 -- x", 3, 5, ["--steps", "100", "--", "x"]),
        ("train.py --help", 2, 5, ["--help"]),
    ],
)
def test_options_stand_before_the_script_or_directly_after_it(line, ranks, steps, own):
    context = verify.command.make_context("verify", line.split())
    assert (context.params["script"], context.params["ranks"], context.params["steps"]) == ("train.py", ranks, steps)
    assert list(context.params["arguments"]) == own


def test_a_script_that_cannot_compute_in_float64_is_verified_in_float32(monkeypatch):
    tried = []

    def compare(*arguments):
        tried.append(arguments[-1])
        if arguments[-1] == "float64":
            raise runs.ScriptError("the script failed", ["InvalidArgumentError: expected float, is double"])
        return "verdict"

    monkeypatch.setattr(runs, "_compare", compare)
    assert runs.verify(["train.py"], 2, 5, None, False, Settings()) == "verdict"
    assert tried == ["float64", "float32"]


# Scripts


def verified(ranks, *arguments, code, timeout=120):
    done = ranks.run("verify", *arguments, timeout=timeout)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_script_that_fails_is_shown_with_its_error(ranks, script):
    done = verified(ranks, script("print('hidden')\nraise KeyError('lost')"), code=1)
    assert "hidden" not in done.stdout
    assert "Traceback" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("easyscale: the script must run on one process. Received: KeyError: 'lost' (exit code 1). ")


def test_a_script_that_fails_on_several_processes_only_is_told_so(ranks, script):
    path = script(
        """
        import easyscale, numpy as np, sys
        easyscale.exchange.get("ring").allreduce(np.ones(3))
        sys.exit(3 if easyscale.size() > 1 else 0)
        """
    )
    done = verified(ranks, path, "-n", 3, code=1)
    message = f"the script must run on 3 processes. Received: exit code 3. Try it by `easyscale launch -n 3 {path}`"
    assert done.stderr == f"easyscale: {message}\n"


@pytest.mark.parametrize("text", ["print('alone')", "import subprocess, sys; subprocess.run([sys.executable, '-V'])"])
def test_a_script_that_exchanges_nothing_is_told_what_to_do(ranks, script, text):
    done = verified(ranks, script(text), code=1)
    assert done.stderr.count("\n") == 1
    assert "the script must exchange something to be verified. Received: nothing to compare" in done.stderr
    assert "`easyscale.callbacks.Distribute()`" in done.stderr


def test_a_script_that_ends_without_a_word_is_told_so(ranks, script):
    done = verified(ranks, script("import os; os._exit(0)"), code=1)
    assert "Received: no word from rank 0 at its end. Leave `os._exit` out" in done.stderr


def test_output_is_shown_if_wanted(ranks, script):
    path = script(
        """
        import easyscale, numpy as np
        ring = easyscale.exchange.get("ring")
        for step in range(10):
            print("step", step, flush=True)
            ring.allreduce(easyscale.shard(np.ones(4)).sum(keepdims=True))
        """
    )
    done = verified(ranks, "--verbose", "--steps", 3, path, code=0)
    assert re.findall("^step .*", done.stdout, re.MULTILINE) == [f"step {step}" for step in (0, 1, 2)] * 2
    assert "  3 allreduces of 3 elements in float64: no difference (tolerance 1e-08)\n" in done.stdout


def test_vectors_that_are_not_divided_sum_up_to_another_result(ranks, script):
    done = verified(
        ranks, script("import easyscale, numpy as np; easyscale.exchange.get().allreduce(np.ones(3))"), code=1
    )
    assert done.stdout.startswith("different: 2 processes do not take the steps of one in ")
    assert "first difference: `allreduce 1` by 1.0e+00 in 3 of 3 elements" in done.stdout


def test_ctrl_c_ends_all_and_leaves_nothing(ranks, script, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = script("import time; print('begun', flush=True); time.sleep(1000)")
    environment = {**ranks.environment, "TMPDIR": str(temporary)}
    process = ranks.start("verify", "--verbose", path, stdout=subprocess.PIPE, env=environment)
    assert process.stdout.readline() == b"begun\n"
    assert list(temporary.iterdir())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    time.sleep(0.1)
    assert not list(temporary.iterdir())


KERAS = """
import keras, numpy as np
from easyscale import callbacks, local_batch, shard

keras.mixed_precision.set_global_policy("mixed_bfloat16")
x = np.random.default_rng(0).normal(size=(65, 8)).astype("float32")  # ranks have 33 and 32 samples
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([
    keras.Input((8,)),
    keras.layers.Dense(8),
    keras.layers.BatchNormalization(synchronized=True),
    keras.layers.Dropout(0.5),
    keras.layers.Dense(1),
])
model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae", keras.metrics.AUC()], steps_per_execution=2)
{shard}
{batch}
checkpoint = keras.callbacks.ModelCheckpoint("written.keras", save_freq=1)
model.fit(x, y > 0, batch_size=batch, epochs=9, callbacks=[callbacks.Distribute(), checkpoint])
"""
SHARD, BATCH = "x, y = shard(x, y)", "batch = local_batch(16)"


@pytest.mark.full
def test_what_is_random_or_rounds_or_writes_is_switched_off(ranks, script, tmp_path):
    done = verified(ranks, script(KERAS.format(shard=SHARD, batch=BATCH)), code=0)
    head, weights, metrics, others, off = done.stdout.splitlines()
    assert head == f"equal: 2 processes take the steps of one in {tmp_path / 'train.py'}"
    assert weights.startswith("  5 steps, 6 weights of 97 elements in float64: max difference ")
    assert metrics.startswith("  metrics loss, mae, auc: ")
    assert others.startswith("  2 variables not trained: ")
    assert off == "  switched off for the comparison: mixed_bfloat16, dropout, shuffling, ModelCheckpoint"
    assert not list(Path().glob("written.keras"))


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        ({"shard": "", "batch": BATCH}, "Received: the same first batch in all 2 processes. Divide the data: "),
        pytest.param(
            {"shard": SHARD, "batch": "batch = 16"},
            "in step 1 one process trains on 16 samples, 2 processes on 32",
            marks=pytest.mark.full,
        ),
    ],
)
def test_data_or_a_batch_that_is_not_divided_is_found(ranks, script, lines, hint):
    done = verified(ranks, script(KERAS.format(**lines)), code=1)
    assert re.search(r"^  first difference: step 1, `sequential/dense/kernel` by \d", done.stdout, re.MULTILINE)
    assert hint in done.stdout


SEVERAL_FITS = """
import keras, numpy as np
from easyscale import callbacks, local_batch, shard

class Contrastive(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        products = keras.ops.matmul(y_pred, keras.ops.transpose(y_pred))
        return keras.ops.mean(keras.ops.logsumexp(products, axis=1))

x = np.random.default_rng(0).normal(size=(70, 8))
xs, ys = shard(x, x.sum(axis=1, keepdims=True))
for kind in (keras.Sequential, Contrastive):
    model = kind([keras.Input((8,)), keras.layers.Dense(1, name="units")])
    model.compile("sgd", "mse")
    distribute = callbacks.Distribute()
    history = model.fit(xs, ys, batch_size=local_batch(16), epochs=9, validation_data=(xs, ys), callbacks=[distribute])
    model.save("written.keras")
assert len(history.epoch) == 9, "it was ended after five steps"
"""


@pytest.mark.full
def test_the_second_fit_is_compared_and_a_loss_over_a_whole_batch_is_told_from_wrong_data(ranks, script):
    done = verified(ranks, script(SEVERAL_FITS), code=1)
    _, difference, hint, rest, off = done.stdout.splitlines()
    assert difference.startswith("  first difference: step 1 of fit() number 2, `contrastive/units/kernel` by ")
    assert hint.startswith(
        "  hint: data are divided rightly: up to step 1 of fit() number 2 all processes together have"
    )
    assert rest == "  not compared: what follows AssertionError: it was ended after five steps"
    assert off == "  switched off for the comparison: shuffling, saving"
    assert not list(Path().glob("written.keras"))


@pytest.mark.parametrize(
    ("arguments", "compared"),
    [
        (["digits.py"], "5 steps, 10 weights of 121,994 elements in float64"),
        pytest.param(
            ["custom_exchange.py"],
            "10 steps of 2 optimizers in 2 fits, 8 weights of 322 elements in float64",
            marks=pytest.mark.full,  # it compares with a ring by itself
        ),
        pytest.param(["pipeline.py"], "5 steps, 10 weights of 32,945 elements in float64", marks=pytest.mark.full),
        pytest.param(
            ["pipeline.py", "-n", "4", "--", "--stages", "2"],
            "5 steps, 10 weights of 32,945 elements in float64",
            marks=pytest.mark.full,
        ),
        pytest.param(["hybrid.py"], "5 steps, 10 weights of 535,242 elements in float64", marks=pytest.mark.full),
        pytest.param(
            ["linear_regression.py", "--exchange", "tree"],
            "5 steps, 2 weights of 2 elements in float64",
            marks=pytest.mark.full,
        ),
        (["allreduce_without_keras.py", "-n", "3", "--", "--points", "3000"], "5 allreduces of 60 elements in float64"),
    ],
)
def test_every_example_takes_the_steps_of_one_process(ranks, arguments, compared):
    name, *options = arguments
    done = verified(ranks, EXAMPLES / name, *options, code=0)
    assert f"  {compared}: " in done.stdout
