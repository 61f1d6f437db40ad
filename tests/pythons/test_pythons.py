"""EasyScale installs and works with each Python that it supports, in the way of the README."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launches import run

ROOT = Path(__file__).parents[2]
# That all can be imported, and that ranks which are threads exchange.
QUICK = ["structure", "test_workers.py", "communicator/test_local.py", "exchange/test_exchange.py"]
INSTALL_LIMIT, LIMIT = 1500.0, 600.0  # seconds


def _supported() -> list[str]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    found = re.findall(r"Programming Language :: Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    assert found
    return [version for version in found if version != "{}.{}".format(*sys.version_info)]


def _find(version: str) -> str | None:
    """A Python of this version: on `PATH`, else one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    ask = ["-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, *ask], capture_output=True, text=True, timeout=120).stdout.strip() == version:
            return str(candidate)
    return None


def _run(command: list[str], limit: float) -> str:
    inherited = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    done = run(command, limit, {name: value for name, value in os.environ.items() if name not in inherited})
    output = done.stdout + done.stderr
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}\n{output[-6000:]}", pytrace=False)
    return output


@pytest.mark.full
@pytest.mark.timeout(4 * INSTALL_LIMIT)
@pytest.mark.parametrize("version", _supported())
def test_it_installs_and_works(version, tmp_path):
    python = _find(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    venv = tmp_path / "venv"
    try:
        _run(["make", "-C", str(ROOT), f"PYTHON={python}", f"VENV={venv}", str(venv / ".test")], INSTALL_LIMIT)
        passed = _run(
            [
                str(venv / "bin" / "pytest"),
                "-q",
                "-p",
                "no:cacheprovider",
                *(str(ROOT / "tests" / path) for path in QUICK),
            ],
            LIMIT,
        )
        assert re.search(r"\d+ passed", passed)
        digits = [str(ROOT / "examples" / "digits.py"), "--epochs", "1"]
        fit = _run([str(venv / "bin" / "easyscale"), "launch", "-n", "2", *digits], LIMIT)
        assert "equal weights on all 2 ranks: yes" in fit
    finally:
        shutil.rmtree(venv, ignore_errors=True)  # 2 GB
