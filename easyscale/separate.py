"""Warns when a multi-rank job calls `fit()` without `Distribute`.

Each rank then trains a separate model, and nothing else shows it. Rank 1 warns at the beginning of the first such
`fit()`, because one that only the chief calls is intended. So is one in a script that asks for its rank and divides
neither data nor batches, such as a hyperparameter search, and one in a script that uses MPI itself.

An `evaluate()` of divided data without `Distribute` is reported where it is detected, by `warn_of_evaluation`.

Keras is patched when the script imports it. No heavy imports: `import easyscale` loads this module.
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
    "each of {size} ranks trains a model of its own: `fit()` must have the callback `Distribute` to train one on "
    "all of them. Received: none. Pass `callbacks=[easyscale.callbacks.Distribute()]`; if it is meant so, "
    '`warnings.filterwarnings("ignore", "each of .* ranks")`'
)


@functools.cache
def warn_of_evaluation() -> None:
    """Warn, once, that each worker has evaluated only its part of the data."""
    warnings.warn(
        "`evaluate()` of data that `shard` has divided must have the callback `Distribute` to be of all of it. "
        "Received: none; each worker has the result of its own part. Pass "
        "`callbacks=[easyscale.callbacks.Distribute()]`, or `evaluate()` the whole data",
        EasyScaleWarning,
        stacklevel=3,
    )


def watch() -> None:
    """On rank 1 of a job, check each `fit()` from now on, also if Keras is imported later."""
    launcher = launchers.detect()
    if launcher is None or launcher.rank != 1:
        return
    when_imported("keras", functools.partial(_watch_keras, os.getpid()))


class _CallbackList(Protocol):
    """The attributes of Keras's `CallbackList` that are used here."""

    model: Any
    callbacks: list


def _watch_keras(rank_process: int) -> None:
    callback_list = sys.modules["keras"].callbacks.CallbackList
    on_train_begin = callback_list.on_train_begin
    has_warned = False

    @functools.wraps(on_train_begin)
    def look_and_begin(callbacks: _CallbackList, logs: dict | None = None) -> None:
        nonlocal has_warned
        if not has_warned and os.getpid() == rank_process and _is_separate(callbacks):  # not in forked children
            has_warned = True
            warn()
        on_train_begin(callbacks, logs)

    callback_list.on_train_begin = look_and_begin


def _is_separate(callbacks: _CallbackList) -> bool:
    divides = {"shard", "local_batch", "scaled_lr"} & called.names
    is_meant = "rank" in called.names and not divides
    is_meant |= "mpi4py.MPI" in sys.modules and "easyscale.communicator.mpi" not in sys.modules
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    main = "" if spec is None else spec.name  # this package's own programs are exempt, unless they run user code
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
    """Warn if the job has several ranks."""
    launcher = launchers.detect()
    if launcher is not None and launcher.size > 1:
        show_in_one_line()
        warnings.warn(MESSAGE.format(size=launcher.size), EasyScaleWarning, stacklevel=2)
