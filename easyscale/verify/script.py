"""The ranks' side of `easyscale verify`: runs the script as Python would, and records its first steps.

Its arguments are a folder, the number of steps, a floating-point type, a script and what that is given.

Keras is watched from the moment the script imports it, so that a script without it does not load it.
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
    """Run the script until enough has been recorded, or to its end. An error of the script's is raised as it is."""
    folder, steps, floatx, script, *arguments = sys.argv[1:]
    rank = communicators.get().rank
    recorder = Recorder(folder, rank, int(steps))
    _watch_sums(recorder)
    # A script that seeds nothing starts from equal weights here, but on other ranks everything else is as random as
    # ever: data that each rank draws for itself is a mistake to be found.
    random.seed(rank)
    np.random.seed(rank)
    when_imported("keras", lambda: _watch_keras(recorder, rank, floatx), through=["easyscale.optimizer"])
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    stderr = os.dup(2)  # which the recorder takes away in the end
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:  # `Finished` comes out of a graph as an error of TensorFlow's
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
            allreduce = exchange.allreduce  # perhaps a subclass's own

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
