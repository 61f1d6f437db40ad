"""A process that trains one script after the other, and tells what became of each.

python -m fuzz.worker SOCKET            without EasyScale
easyscale launch -n 2 -m fuzz.worker SOCKET with
"""

import contextlib
import faulthandler
import gc
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Client
from typing import NamedTuple

__all__ = ["Reply", "Task", "main"]


class Task(NamedTuple):
    """A script to train. `setup` is a source that is run before, such as one that plants a fault."""

    source: str
    setup: str = ""


class Reply(NamedTuple):
    """What became of a script on one rank: what can be seen of training, or the error that ended it.

    Attributes:
        seen: Dict, nested. `None` if there was an error.
        error: String. The name of the exception's class; `""` without one.
        message: String. What it says.
        is_ours: Bool. Whether EasyScale raised it, and not what it called.
        trace: String. The traceback.
    """

    seen: dict | None = None
    error: str = ""
    message: str = ""
    is_ours: bool = False
    trace: str = ""


def main(address: str) -> None:
    """Train what comes from `address` until it is closed."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import keras

    easyscale = None
    if "EASYSCALE_FUZZ_PLAIN" not in os.environ:
        import easyscale
        from easyscale.update import choosing

        choosing.SHARDED_FROM = 0  # as models are large
        _emulate_nodes(int(os.environ.get("EASYSCALE_FUZZ_NODE_SIZE", "0")))
    around = contextlib.nullcontext
    if keras.backend.backend() == "tensorflow":
        _spare_autotuning()
        around = _xla_by_size if easyscale else around
    rank = easyscale.communicator.get().rank if easyscale else 0
    connection = Client(address, "AF_UNIX")
    connection.send((rank, os.getpid()))
    with contextlib.suppress(EOFError), tempfile.TemporaryDirectory() as folder:
        for number in range(sys.maxsize):
            task = connection.recv()
            keras.backend.clear_session()
            keras.config.set_floatx("float32")
            keras.config.set_dtype_policy("float32")
            gc.collect()
            if easyscale:
                easyscale.mesh.set_ranks_of_worker(1)
                easyscale.called.names.clear()
            common = None
            if "EASYSCALE_FUZZ_AUTO" in os.environ:  # all ranks of a script have one folder
                common = os.path.join(os.path.dirname(address), f"case{number}")
                os.makedirs(common, exist_ok=True)
            with around():
                connection.send(_train(task, easyscale, os.path.join(folder, f"case{number}.py"), common))


def _train(task: Task, easyscale: object, path: str, common: str | None = None) -> Reply:
    with open(path, "w", encoding="utf-8") as file:  # where TensorFlow finds the source of functions
        file.write(task.source)
    try:
        exec(compile(task.setup, "setup", "exec"), {"easyscale": easyscale})
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            script = {"__name__": "case", "__file__": path}
            exec(compile(task.source, path, "exec"), script)
            return Reply(script["train"](easyscale, folder) if common is None else script["train"](None, common))
    except (Exception, SystemExit) as error:
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        is_ours = easyscale is not None and any(f"/{part}/" in frames[-1] for part in ("easyscale", "callbacks", "cli"))
        is_ours = is_ours and "/keras/" not in frames[-1]
        return Reply(None, type(error).__name__, str(error), is_ours, traceback.format_exc())
    finally:
        os.unlink(path)


def _emulate_nodes(size: int) -> None:
    """Let each `size` ranks be those of a node, and connect."""
    import easyscale

    if size:
        from easyscale.communicator.mpi import job

        job.ranks_of_this_node = lambda intra: intra.Split(intra.rank // size, intra.rank)
    easyscale.scope()


@contextlib.contextmanager
def _xla_by_size() -> Iterator[None]:
    """Behind it, XLA compiles what it compiles for everybody, whatever a script has set."""
    from easyscale.backend.tensorflow import compiled_update

    compiled_from = compiled_update.XLA_FROM
    try:
        yield
    finally:
        compiled_update.XLA_FROM = compiled_from


def _spare_autotuning() -> None:
    """Turn off what tunes TensorFlow's data pipelines: its threads cost more than the little training of a case."""
    import tensorflow as tf

    with_options = tf.data.Dataset.with_options

    def untuned(dataset, options, name=None):
        options.autotune.enabled = False
        return with_options(dataset, options, name)

    tf.data.Dataset.with_options = untuned


if __name__ == "__main__":
    from fuzz import worker  # whose classes have a name by which they can be sent

    worker.main(sys.argv[1])
