"""What is installed is EasyScale and nothing else: the contents of sdist and wheel, and a job from the wheel."""

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from launches import environment, run
from structure.package import MODULES

import easyscale

ROOT = Path(__file__).parents[2]
NAME = f"easyscale-{easyscale.__version__}"
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "shared")
LIMIT = 120.0  # seconds
pytestmark = pytest.mark.xdist_group("wheel")  # which is built once
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def _build(what, source, out):
    """Build an sdist or a wheel as pip would, by what is installed here; return the file."""
    done = run(["env", "-C", str(source), sys.executable, "-c", BUILD, f"build_{what}", str(out)], timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def _files_of_modules():
    """The places of all modules in the wheel."""
    inside = [name.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py")
              for name, file in MODULES.items()]  # fmt: skip
    return {*inside, "easyscale/py.typed"}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "source", ignore=NOT_COPIED)
    return _build("sdist", folder / "source", folder)


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return _build("wheel", folder / NAME, folder)


def test_a_wheel_of_the_sdist_has_all_modules_and_nothing_beside(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    assert names - about == _files_of_modules()
    assert f"{NAME}.dist-info/licenses/LICENSE" in about


def test_an_sdist_has_what_it_takes_to_build_it(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    assert {"LICENSE", "README.md", "setup.cfg", "pyproject.toml", "easyscale/py.typed"} <= names


def test_a_checkout_that_is_the_working_directory_is_the_whole_package():
    """`python -m` looks there first, and so do ranks: `cli` and `callbacks` stand beside the package in a checkout."""
    names = ["cli.launch.worker", "callbacks", "settings"]
    found = "from importlib.util import find_spec; print(*(find_spec('easyscale.' + name).origin for name in %r))"
    alone = ["env", "-C", str(ROOT), sys.executable, "-S"]  # without what is installed, as it is in `.venv`
    done = run([*alone, "-c", found % names], LIMIT, environment())
    assert done.returncode == 0, done.stderr
    files = [ROOT / "cli/launch/worker.py", ROOT / "callbacks/__init__.py", ROOT / "easyscale/settings.py"]
    assert done.stdout.split() == list(map(str, files))


def test_ranks_start_from_the_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    script = tmp_path / "script.py"
    script.write_text("import easyscale; print(easyscale.__file__, easyscale.rank(), easyscale.size())")
    variables = environment(PYTHONPATH=str(tmp_path / "installed"))
    command = [sys.executable, "-m", "easyscale", "launch", "-n", "2", str(script)]
    done = run(["env", "-C", str(tmp_path), *command], LIMIT, variables)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/installed/easyscale/__init__.py 0 2\n" in done.stdout
