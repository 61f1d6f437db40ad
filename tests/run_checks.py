"""What each rank runs for `launches.over_ranks`: the checks of one file after the other, in a folder of tasks.

python run_checks.py FOLDER PID     until the process PID, which writes the tasks, is gone
"""

import faulthandler
import gc
import json
import os
import runpy
import sys
import time
import traceback
import warnings
from pathlib import Path

from easyscale import called, communicator, mesh

TESTS = Path(__file__).parent


def spare_autotuning():
    """Turn off what tunes TensorFlow's data pipelines: its threads cost more than the little training of a check."""
    import tensorflow as tf

    with_options = tf.data.Dataset.with_options

    def untuned(dataset, options, name=None):
        options.autotune.enabled = False
        return with_options(dataset, options, name)

    tf.data.Dataset.with_options = untuned


def next_task(number):
    """Wait for the next task and return it; `{}` if there will be none."""
    path = folder / f"{number}.json"
    while not path.exists():
        if not Path(f"/proc/{tester}").exists():
            return {}
        time.sleep(0.02)
    return json.loads(path.read_text())


def write(report, path):
    """Write a report at once, so that nobody reads half of it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report))
    new.rename(path)


def run(path, names, report_path):
    """Run these checks of a file, each with the id of its test; end the launch with the first that fails."""
    report = {"measured": {}, "seconds": {}}  # what checks return and take, by name
    try:
        checks = runpy.run_path(path)
    except BaseException:
        traceback.print_exc()
        end()
    if "tensorflow" in sys.modules and not hasattr(run, "is_spared"):
        spare_autotuning()
        run.is_spared = True
    for name, check in checks.items():
        if name in names:
            if recorder is not None:
                recorder.switch_context(names[name])
            begin = time.monotonic()
            try:
                report["measured"][name] = check()
                report[name] = "passed"
            except BaseException:
                report[name] = traceback.format_exc()
            finally:
                report["seconds"][name] = round(time.monotonic() - begin, 2)
                write(report, report_path)
            if report[name] != "passed":
                end()
    write({**report, "ended": True}, report_path)


def end():
    """End this rank at once: the others may be waiting for it, and mpirun ends them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def forget():
    """Let the next file find what the first has found: no module of another, and Keras as it was imported."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and str(getattr(module, "__file__", None) or "").startswith(f"{TESTS}/"):
            del sys.modules[name]
    called.names.clear()
    called._local_batches.clear()
    mesh.set_ranks_of_worker(1)
    if "keras" in sys.modules:
        import keras

        keras.backend.clear_session()
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    gc.collect()
    gc.freeze()  # what is left stays: later collections need not look at it


def recorder_of_lines():
    """Return what records which test runs which lines, if something does; see `tests/mutants`."""
    if "COVERAGE_PROCESS_START" not in os.environ:
        return None
    import coverage

    return coverage.Coverage.current()


warnings.filterwarnings("error", message="Explicitly requested dtype")  # of JAX: users would see it, too
recorder = recorder_of_lines()
folder, tester = Path(sys.argv[1]), sys.argv[2]
rank = communicator.get().rank
before = list(sys.path)  # with the folder of this file
number = 1
while task := next_task(number):
    faulthandler.dump_traceback_later(task["limit"], exit=True)  # a rank that hangs says where
    sys.path[:] = [str(Path(task["checks"]).parent), *before]
    run(task["checks"], task["names"], folder / f"{number}-{rank}.json")
    faulthandler.cancel_dump_traceback_later()
    forget()
    number += 1
