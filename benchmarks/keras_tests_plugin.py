"""What pytest loads to run Keras's own tests with `Distribute` in every `fit()`.

    PYTHONPATH=benchmarks pytest -p keras_tests_plugin --distribute --outcomes FOLDER .../keras/src/callbacks

`keras_tests.py` starts it, without `--distribute` and with it. The outcome of each test goes into a file of the rank as
soon as it is known, so that what a process that dies has done is not lost.

With several ranks every rank runs every test, on the same data: then one step of all is that of one process. Each has
temporary folders of its own. As only the chief writes, what its folders hold, and the numbers of its callbacks that
write, are copied to the others after each `fit()`: a test that reads them does so on every rank, and none deletes
another's files.
"""

import contextlib
import functools
import inspect
import json
import os
import random
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from keras.src import optimizers

import easyscale
from easyscale import communicator
from easyscale.training.callback_list import WRITERS

MARKERS = ("requires_trainable_backend", "multi_device")  # of the conftest.py of Keras's repository

_folders: list[tuple[str, int]] = []  # which the running test has made, each with the `id` of the test
_running: list[str] = []  # the parts of the path of the running test
_wrapped: dict[int, easyscale.DistributedOptimizer] = {}  # by the `id` of the optimizer inside
_outcomes: list[Path] = []

# Of Keras's private module, where it has another name from 3.16 on.
TensorFlowTrainer = next(
    kind for kind in keras.Model.__mro__ if kind.__module__ == "keras.src.backend.tensorflow.trainer"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--distribute", action="store_true", help="add EasyScale to what the tests do")
    parser.addoption("--done", type=Path, help="file with the names of tests that are left out")
    parser.addoption("--outcomes", type=Path, required=True, help="folder for a file of each rank's outcomes")


def pytest_configure(config: pytest.Config) -> None:
    for name in MARKERS:
        config.addinivalue_line("markers", name)
    sys.modules.setdefault("conftest", _conftest())
    _outcomes.append(config.getoption("outcomes") / f"{easyscale.rank()}.jsonl")
    if config.getoption("distribute"):
        for name in ("fit", "evaluate"):
            setattr(TensorFlowTrainer, name, _distributed(getattr(TensorFlowTrainer, name)))
        for kind in {optimizers.Optimizer, *optimizers.ALL_OBJECTS}:
            if "apply" in vars(kind):
                kind.apply = _around(kind.apply)
    if easyscale.size() > 1:
        tempfile.mkdtemp = _noting(tempfile.mkdtemp)
    if not easyscale.is_chief():  # what only the chief has, such as `ModelCheckpoint`, warns only there
        pytest.warns = lambda *args, **kwargs: contextlib.nullcontext()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = config.getoption("done")
    names = set(json.loads(done.read_text())) if done else set()
    items[:] = [item for item in items if item.nodeid not in names]  # `--deselect` goes by how names begin


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    _running[:] = item.path.parts
    _folders.clear()
    _wrapped.clear()
    _note(item.nodeid, "started")
    result = yield
    if easyscale.size() > 1:
        if item.session.testsfailed:  # the others may wait for this rank: the launcher ends them
            sys.stdout.flush()
            os._exit(1)
        communicator.get().barrier()
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and easyscale.size() > 1:
        print(report.longreprtext, flush=True)
    if report.when == "call" or not report.passed:
        _note(report.nodeid, report.outcome, report.longrepr)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note(report.nodeid, report.outcome, report.longrepr)


def _note(test: str, outcome: str, said: object = "") -> None:
    said = str(getattr(getattr(said, "reprcrash", None), "message", said)).strip().partition("\n")[0]
    with _outcomes[0].open("a") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "said": said}) + "\n")


def _conftest() -> types.ModuleType:
    """Keras's tests import this one name from the conftest.py of its repository, which is not installed."""
    module = types.ModuleType("conftest")
    module.skip_if_backend = lambda name, reason: pytest.mark.skipif(keras.backend.backend() == name, reason=reason)
    return module


def _distributed(original: Callable) -> Callable:
    """Add `Distribute` to the callbacks of a model's `fit()` or `evaluate()`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def distributed(*args, **kwargs):
        arguments = signature.bind(*args, **kwargs).arguments
        callbacks = arguments.get("callbacks") or []
        if not isinstance(callbacks, keras.callbacks.CallbackList):  # as Keras itself passes them on to `evaluate()`
            callbacks = keras.tree.flatten(callbacks)
            arguments["callbacks"] = [*callbacks, easyscale.callbacks.Distribute()]
        arguments |= arguments.pop("kwargs", {})
        try:
            return original(**arguments)
        finally:
            if original.__name__ == "fit" and easyscale.size() > 1:
                _copy_from_chief(callbacks)

    return distributed


def _around(original: Callable) -> Callable:
    """In the tests of optimizers, have each optimizer's `apply` called by a `DistributedOptimizer` around it."""

    @functools.wraps(original)
    def apply(optimizer, grads, trainable_variables=None):
        is_wrapped = isinstance(optimizer, easyscale.DistributedOptimizer) or _is_inside_another()
        if is_wrapped or "optimizers" not in _running or not tf.executing_eagerly():
            return original(optimizer, grads, trainable_variables)
        if id(optimizer) not in _wrapped:
            _wrapped[id(optimizer)] = easyscale.DistributedOptimizer(optimizer)
        around = _wrapped[id(optimizer)]
        if optimizer.built and not around.built:
            around.build(optimizer._trainable_variables)
        return around.apply(grads, trainable_variables)

    return apply


def _is_inside_another() -> bool:
    """Whether another optimizer's `apply` has called this one's, or it must not touch variables."""
    frame = sys._getframe(2)
    while frame is not None:
        is_apply = frame.f_code.co_name in ("apply", "stateless_apply")
        if is_apply and isinstance(frame.f_locals.get("self"), keras.optimizers.Optimizer):
            return True
        frame = frame.f_back
    return False


def _noting(original: Callable) -> Callable:
    """Note the temporary folders that a test makes, and not those of Keras itself."""

    @functools.wraps(original)
    def mkdtemp(*args, **kwargs):
        folder = original(*args, **kwargs)
        frames = inspect.getouterframes(inspect.currentframe(), context=0)[1:4]
        if any(frame.filename.endswith(("_test.py", "test_case.py")) for frame in frames):
            _folders.append((folder, id(frames[0].frame.f_locals.get("self"))))
            random.seed(0)  # those of TensorBoard's tests name a folder in it by a random number
        return folder

    return mkdtemp


def _copy_from_chief(callbacks: list) -> None:
    """Make this rank's temporary folders, and what it may know of callbacks that only the chief has, the chief's."""
    ranks = communicator.get()
    writers = [callback for callback in callbacks if isinstance(callback, WRITERS)]
    seen = [
        {name: value for name, value in vars(writer).items() if isinstance(value, (int, float))} for writer in writers
    ]
    folders, seen = ranks.all_gather_object([_folders, seen])[0]
    if not ranks.is_chief:
        for (here, own), (there, chiefs) in zip(_folders, folders, strict=True):
            if Path(there).is_dir():
                shutil.rmtree(here, ignore_errors=True)
                shutil.copytree(there, here)
                for named in Path(here).glob(f"*{chiefs}"):  # after the test itself, as Orbax's are
                    named.rename(str(named).replace(str(chiefs), str(own)))
        for callback, attributes in zip(writers, seen, strict=True):
            vars(callback).update(attributes)
    ranks.barrier()
