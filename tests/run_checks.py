"""What each rank runs for `launches.over_ranks`: the checks of one file, one after the other."""

import faulthandler
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

from easyscale import communicator


def spare_autotuning():
    """Turn off what tunes TensorFlow's data pipelines: its threads cost more than the little training of a check."""
    import tensorflow as tf

    with_options = tf.data.Dataset.with_options

    def untuned(dataset, options, name=None):
        options.autotune.enabled = False
        return with_options(dataset, options, name)

    tf.data.Dataset.with_options = untuned


path, folder, limit = sys.argv[1:]
faulthandler.dump_traceback_later(float(limit), exit=True)  # a rank that hangs says where
sys.path.insert(0, str(Path(path).parent))
rank = communicator.get().rank
report = {"measured": {}}  # what checks return, by name
checks = runpy.run_path(path)
if "tensorflow" in sys.modules:
    spare_autotuning()
for name, check in checks.items():
    if name.startswith("check_"):
        try:
            report["measured"][name] = check()
            report[name] = "passed"
        except BaseException:
            report[name] = traceback.format_exc()
        finally:
            Path(folder, f"{rank}.json").write_text(json.dumps(report))
        if report[name] != "passed":
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # the others may be waiting for this rank: mpirun ends them
