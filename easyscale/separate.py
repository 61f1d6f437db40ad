"""Whether a `fit()` without `Distribute`, in a job of several ranks, was forgotten to be one of all of them.

Each rank trains a model of its own then, and nothing else shows it. Rank 1 says so, at the end of the first such
`fit()`: one that only the chief calls is meant so. So is one of a script that asks for its rank and divides neither
data nor batches, such as a search over hyperparameters, and one in a script that uses MPI by itself.

An `evaluate()` of divided data without `Distribute` is told of by whoever sees it: `warn_of_evaluation`.

Keras is watched from the moment the script imports it. Nothing heavy is imported here: `import easyscale` does.
"""

import functools
import os
import sys
import warnings
from typing import Any, Protocol

from easyscale import called, launchers
from easyscale.errors import EasyScaleWarning, show_in_one_line
from easyscale.when_imported import when_imported

__all__ = ["warn", "warn_of_evaluation", "watch"]

MESSAGE = (
    "each of {size} ranks has trained a model of its own: `fit()` must have the callback `Distribute` to train one on "
    "all of them. Received: none. Pass `callbacks=[easyscale.callbacks.Distribute()]`; if it is meant so, "
    '`warnings.filterwarnings("ignore", "each of .* ranks")`'
)


@functools.cache
def warn_of_evaluation() -> None:
    """Warn, once, that a worker has evaluated its part of the data, and nobody the whole."""
    warnings.warn(
        "`evaluate()` of data that `shard` has divided must have the callback `Distribute` to be of all of it. "
        "Received: none; each worker has the result of its own part. Pass "
        "`callbacks=[easyscale.callbacks.Distribute()]`, or `evaluate()` the whole data",
        EasyScaleWarning,
        stacklevel=3,
    )


def watch() -> None:
    """In rank 1 of a job, look at each `fit()` from now on, also if Keras is imported later."""
    launcher = launchers.detect()
    if launcher is None or launcher.rank != 1:
        return
    when_imported("keras", functools.partial(_watch_keras, os.getpid()))


class _CallbackList(Protocol):
    """What is looked at of Keras's own."""

    model: Any
    callbacks: list


def _watch_keras(rank_process: int) -> None:
    callback_list = sys.modules["keras"].callbacks.CallbackList
    on_train_end = callback_list.on_train_end
    has_warned = False

    @functools.wraps(on_train_end)
    def on_train_end_and_look(callbacks: _CallbackList, logs: dict | None = None) -> None:
        nonlocal has_warned
        on_train_end(callbacks, logs)
        if not has_warned and os.getpid() == rank_process and _is_separate(callbacks):  # and not in what it has forked
            has_warned = True
            warn()

    callback_list.on_train_end = on_train_end_and_look


def _is_separate(callbacks: _CallbackList) -> bool:
    divides = {"shard", "local_batch", "scaled_lr"} & called.names
    is_meant = "rank" in called.names and not divides
    is_meant |= "mpi4py.MPI" in sys.modules and "easyscale.communicator.mpi" not in sys.modules
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    main = "" if spec is None else spec.name  # one of this package's, unless it calls a function of the user's
    is_meant |= main.startswith(f"{__package__}.") and not main.startswith(f"{__package__}.running.")
    if is_meant or callbacks.model is None:
        return False
    optimizers = [value for value in vars(callbacks.model).values() if hasattr(value, "apply_gradients")]
    optimizers += [getattr(optimizer, "inner_optimizer", None) for optimizer in optimizers]
    ours = [
        getattr(sys.modules.get(f"{__package__}.{module}"), name, ())
        for module, name in (("callbacks.distribute", "Distribute"), ("optimizer", "DistributedOptimizer"))
    ]
    return not any(isinstance(part, tuple(filter(None, ours))) for part in [*callbacks.callbacks, *optimizers])


def warn() -> None:
    """Warn, in a job of several ranks."""
    launcher = launchers.detect()
    if launcher is not None and launcher.size > 1:
        show_in_one_line()
        warnings.warn(MESSAGE.format(size=launcher.size), EasyScaleWarning, stacklevel=2)
