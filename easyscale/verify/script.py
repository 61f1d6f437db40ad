"""Entry point of each rank of `easyscale verify`: runs the script as Python would, and records its first steps.

Its arguments are a folder, the number of steps, a floating-point type, a script and the script's arguments.

Keras is instrumented when the script imports it, so a script without Keras never loads it.
"""

import os
import random
import runpy
import sys

import numpy as np

from easyscale import communicator as communicators
from easyscale.exchange import Exchange
from easyscale.verify.recorder import Recorder
from easyscale.when_imported import when_imported

__all__ = ["main"]


def main() -> None:
    """Run the script until enough has been recorded, or to its end. The script's own exceptions propagate."""
    folder, steps, floatx, script, *arguments = sys.argv[1:]
    rank = communicators.get().rank
    recorder = Recorder(folder, rank, int(steps))
    _watch_sums(recorder)
    # Rank 0 has the same seed in every run, so a script that sets no seed starts from the same weights. Other ranks
    # have other seeds: data that each rank draws for itself is a mistake to detect.
    random.seed(rank)
    np.random.seed(rank)
    when_imported("keras", lambda: _watch_keras(recorder, rank, floatx), through=["easyscale.optimizer"])
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    stderr = os.dup(2)  # the recorder redirects it at the end
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:  # TensorFlow wraps a `Finished` that is raised in a graph
        ends_well = isinstance(error, SystemExit) and not error.code
        if not (recorder.complete or ends_well):
            raise
        if not (ends_well or recorder.has_finished):
            recorder.note("failed", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    os.dup2(stderr, 2)
    recorder.write()


def _watch_sums(recorder: Recorder) -> None:
    connect = Exchange.connect

    def connect_and_watch(exchange: Exchange, communicator: communicators.Communicator) -> Exchange:
        connect(exchange, communicator)
        if "allreduce" not in vars(exchange):
            allreduce = exchange.allreduce  # may be overridden by a subclass

            def watched(buffer: np.ndarray) -> None:
                allreduce(buffer)
                recorder.sum(buffer)

            vars(exchange)["allreduce"] = watched
        return exchange

    type.__setattr__(Exchange, "connect", connect_and_watch)


def _watch_keras(recorder: Recorder, seed: int, floatx: str) -> None:
    from easyscale.verify import training

    training.watch(recorder, seed, floatx)


if __name__ == "__main__":
    main()
