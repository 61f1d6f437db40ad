"""Fixtures for all tests."""

import os
import runpy
import sys
from pathlib import Path

import pytest

# Tests import `launches` by name; with --import-mode=importlib their folder is not on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))
# What the tests start, and this process, imports Keras sooner; see `startup/sitecustomize.py`.
STARTUP = str(Path(__file__).with_name("startup"))
os.environ["PYTHONPATH"] = os.pathsep.join([STARTUP, *filter(None, [os.environ.get("PYTHONPATH")])])
runpy.run_path(str(Path(STARTUP, "sitecustomize.py")))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # tests compute, and say, the same on each processor

import launches  # noqa: E402

from easyscale import called, communicator  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_called():
    """Each test is a script of its own: what an earlier one has called says nothing of what this one has forgotten."""
    called.names.clear()
    called._local_batches.clear()


@pytest.fixture(scope="session", autouse=True)
def _no_ranks_stay():
    """The ranks that are up for files of checks end with the tests."""
    yield
    launches.close()


@pytest.fixture
def run_ranks():
    """`run_ranks(size, on_rank)`: call a function on ranks that are threads of this process."""
    return communicator.run_ranks


def pytest_runtest_setup(item):
    """Let what records which test runs which lines know the test; see `tests/mutants`."""
    if "COVERAGE_PROCESS_START" in os.environ:
        import coverage

        coverage.Coverage.current().switch_context(item.nodeid)
