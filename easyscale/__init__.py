"""EasyScale: one Keras `fit()` on several processes, with a choice of gradient exchanges.

Names are loaded on first use, so `import easyscale` needs neither TensorFlow, Keras nor MPI.
"""

import importlib
import os
import signal
import sys
import typing

_is_command = os.path.basename((sys.argv or [""])[0]) in ("easyscale", "easyscale.exe")
if _is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl-C while the command loads; see `cli/main.py`

__version__ = "0.2.0"
"""The version of this package.

Example:

>>> import easyscale
>>> print(f"EasyScale {easyscale.__version__}")
EasyScale 0.2.0
"""

_WHERE = {
    "DistributedOptimizer": "easyscale.optimizer",
    "DesyncError": "easyscale.errors",
    "EasyScaleError": "easyscale.errors",
    "EasyScaleWarning": "easyscale.errors",
    "LaunchError": "easyscale.errors",
    "PeerError": "easyscale.errors",
    "SharedMemoryError": "easyscale.errors",
    "WorkerError": "easyscale.errors",
    "is_chief": "easyscale.workers",
    "local_batch": "easyscale.workers",
    "local_rank": "easyscale.workers",
    "local_size": "easyscale.workers",
    "rank": "easyscale.workers",
    "run": "easyscale.running.run",
    "scaled_lr": "easyscale.scaling",
    "scope": "easyscale.workers",
    "shard": "easyscale.data",
    "size": "easyscale.workers",
    "unshard": "easyscale.data",
}
_MODULES = (
    "callbacks",
    "communicator",
    "compression",
    "exchange",
    "integrations",
    "optimizers",
    "parallel",
    "replication",
    "update",
)

__all__ = ["__version__", *_MODULES, *_WHERE]

if not os.path.isdir(os.path.join(__path__[0], "cli")):  # a checkout: `callbacks` and `cli` are next to this folder
    __path__.append(os.path.dirname(__path__[0]))

importlib.import_module("easyscale.keras_backend").watch()
importlib.import_module("easyscale.logical_devices").watch()
if (_launcher := importlib.import_module("easyscale.launchers").detect()) is not None:  # one of several ranks
    importlib.import_module("easyscale.unbuffered").write_whole()
    importlib.import_module("easyscale.visible_gpus").divide(_launcher, os.environ)
    importlib.import_module("easyscale.errors").show_in_one_line()
    importlib.import_module("easyscale.separate").watch()
    importlib.import_module("easyscale.tf_caches").watch()


def __getattr__(name: str) -> typing.Any:
    if name in _MODULES:
        return importlib.import_module(f"easyscale.{name}")
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'easyscale' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
