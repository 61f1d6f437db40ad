"""Fixtures for all tests."""

import gc
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


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect():
    """Exclude from garbage collection what earlier files have left, such as graphs that Keras keeps."""
    gc.collect()
    gc.freeze()


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


def pytest_sessionfinish():
    """Keep what has been recorded: the processes of pytest-xdist end without it."""
    if "COVERAGE_PROCESS_START" in os.environ:
        import coverage

        coverage.Coverage.current().save()


def pytest_addoption(parser):
    parser.addoption("--slice", help="k/n: of what would be run, the k-th of n parts; k may be larger than n")


def pytest_collection_modifyitems(config, items):
    """Keep the tests of one slice. Tests that share a launch stay together."""
    if not config.getoption("--slice"):
        return
    number, _, count = map(str.strip, config.getoption("--slice").partition("/"))
    if not (number.isdigit() and count.isdigit() and int(count)):
        raise pytest.UsageError(f"--slice must be k/n, such as 3/20. Received: {config.getoption('--slice')!r}")
    groups = sorted({_together(item) for item in items})
    chosen = set(groups[int(number) % int(count) :: int(count)])
    left_out = [item for item in items if _together(item) not in chosen]
    items[:] = [item for item in items if _together(item) in chosen]
    config.hook.pytest_deselected(items=left_out)


def _together(item):
    """The name of what a test cannot be parted from: those of one launch, or one test with all its parameters."""
    group = item.get_closest_marker("xdist_group")
    return group.args[0] if group else item.nodeid
