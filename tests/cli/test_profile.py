"""`easyscale launch --profile --trace`: what the chief says at the end of a `fit()`, and the file that it writes."""

import json
import re

import pytest

SCRIPT = """
import keras, numpy as np
import easyscale
x = np.ones((64, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("adam", "mse")
x, y = easyscale.shard(x, x[:, :2])
for epochs in (2, 1):
    model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=[easyscale.callbacks.Distribute()])
print("end", easyscale.rank())
"""


def test_the_chief_says_where_the_time_went_and_writes_a_trace(ranks, script, tmp_path):
    trace = tmp_path / "trace.json"
    options = ["--profile", "--trace", trace, "--trace-steps", "3:5"]
    done = ranks.run("launch", "-n", "2", *options, script(SCRIPT), timeout=100)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "end" in line) == ["[1] end 1", "end 0"]
    said = [line.removeprefix("EasyScale: ") for line in done.stdout.splitlines() if line.startswith("EasyScale: ")]
    assert len(said) == 10  # of each fit(): title, names of parts, two ranks, what would help
    for steps, (title, names, *rows, advice) in ((15, said[:5]), (7, said[5:])):
        assert title == f"where the time of {steps} steps went, in ms of a step:"
        assert names.split()[0] == "rank" and names.split()[-1] == "step"
        assert {"data", "forward-backward", "exchange", "update"} <= set(names.split())
        for rank, row in enumerate(rows):
            number, *parts, step = map(float, row.split())
            assert number == rank and sum(parts) == pytest.approx(step, rel=0.05)
        assert re.match(r"\d+% of a step ", advice)
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {0, 1}
    assert {event["args"]["step"] for event in events} == {3, 4}
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in events)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trace", "none/trace.json"], "--trace must be a file in a folder that exists and may be written"),
        (["--trace", "trace.json", "--trace-steps", "20:10"], "--trace-steps: steps must be the number of the first"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_before_anything_starts(ranks, script, tmp_path, options, said):
    done = ranks.run("launch", "-n", "2", *options, script("print('started')"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"easyscale launch: {said}") and len(done.stderr.splitlines()) == 1


def test_a_job_without_a_step_is_told_so(ranks, script, tmp_path):
    options = ["--profile", "--trace", tmp_path / "trace.json"]
    done = ranks.run("launch", "-n", "2", *options, script("import easyscale; easyscale.rank()"))
    line = "EasyScale: no step was recorded: --profile and --trace are for steps of a `fit()` with `Distribute`, and "
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{line}there was none\n", "")
