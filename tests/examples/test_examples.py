import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from launches import mpirun, over_ranks, run

EXAMPLES = Path(__file__).parents[2] / "examples"


@over_ranks(Path(__file__).with_name("examples_on_ranks.py"), sizes=[], full=[1, 2, 3], limit=400)
def test_example_between_processes(check):
    check()


@pytest.mark.full
def test_demo_trains_digits_to_97_percent_on_one_process_and_on_two():
    done = run([sys.executable, str(EXAMPLES / "demo.py")], timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = re.findall(r"^test accuracy: (.+)$", done.stdout, re.MULTILINE)
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) >= 0.97
    assert re.findall(r"^equal weights on all (\d.+)$", done.stdout, re.MULTILINE) == ["1 ranks: yes", "2 ranks: yes"]
    summary = done.stdout[done.stdout.rindex("1 process ") :]
    assert re.search(rf"^test accuracy +{accuracies[0]} +{accuracies[1]}$", summary, re.MULTILINE)
    assert re.search(r"^samples/s +\d+ +\d+$", summary, re.MULTILINE)
    assert re.search(r"^equal weights on all ranks +yes$", summary, re.MULTILINE)


@pytest.mark.full
def test_replication_makes_the_same_model_on_one_device_on_two_and_on_two_processes():
    easyscale = str(Path(sys.executable).with_name("easyscale"))
    script = [str(EXAMPLES / "replication.py"), "--epochs", "1"]
    printed = []
    for start in (
        [sys.executable],
        [easyscale, "launch", "-n", "2", "--replication", "in_graph", "--exchange", "ring"],
        [easyscale, "launch", "-n", "2"],
    ):
        done = run([*start, *script], timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "AutoGraph" not in done.stderr, done.stderr
        printed.append(dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line))
    assert [row["workers"] for row in printed] == ["1", "2", "2"]
    logits = [float(row["logits"]) for row in printed]
    assert logits == [pytest.approx(logits[0], rel=1e-4)] * 3


def test_demo_ends_with_the_exit_code_of_what_it_runs():
    demo = runpy.run_path(str(EXAMPLES / "demo.py"))
    with pytest.raises(SystemExit) as end:
        demo["train"]([sys.executable, "-c", "raise SystemExit(3)"], os.sched_getaffinity(0))
    assert end.value.code == 3


def test_demo_says_how_many_times_as_fast_two_processes_are():
    demo = runpy.run_path(str(EXAMPLES / "demo.py"))
    single = {"test accuracy": "0.9800", "samples/s": "2000"}
    double = {"test accuracy": "0.9750", "samples/s": "1500", "equal weights on all 2 ranks": "yes"}
    assert "Two processes trained 0.75 times as fast as one." in demo["summary"](single, double, cores=2)
    assert demo["summary"](single, double, cores=1).endswith("They had to share this machine's one core.")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_allreduce_without_keras_finds_the_centres_of_one_process_and_loads_no_tensorflow(size):
    script = str(EXAMPLES / "allreduce_without_keras.py")
    loaded = f"import runpy, sys; runpy.run_path({script!r}, run_name='__main__'); "
    loaded += "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    start = mpirun(size) if size > 1 else []
    done = run([*start, sys.executable, "-c", loaded], timeout=60)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == f"{size} process(es), 300,000 points"
    numbers = [[float(number) for number in re.findall(r"-?\d+\.?\d*", line)] for line in lines]
    expected = [
        (0.00458, -0.00450, 75002),
        (5.99773, 0.00335, 75031),
        (0.00470, 6.00635, 74983),
        (6.00190, 5.99944, 74984),
    ]
    assert numbers == [pytest.approx(centre, abs=2e-5) for centre in expected]
