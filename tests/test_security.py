"""What no part of the project does: it unpickles nothing that another user could have written, starts no shell and
opens no port.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from easyscale.errors import EasyScaleError
from easyscale.running.folder import Folder

ROOT = Path(__file__).parents[1]
SOURCES = [file for folder in ("easyscale", "callbacks", "cli") for file in sorted((ROOT / folder).rglob("*.py"))]
EXECUTES_WHAT_IT_READS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
# Of a folder that it has found to be this user's, and closed to others.
READS_OWN_FILES = ROOT / "easyscale" / "running" / "folder.py"
# Stands in the place of ssh: the line that it gives to a shell is mpirun's own, through Ray, which runs any code.
STARTS_A_SHELL = ROOT / "easyscale" / "integrations" / "ray" / "node.py"


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_is_unpickled_and_no_shell_is_started(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if file == READS_OWN_FILES and isinstance(node, ast.Import):
            continue
        if file == STARTS_A_SHELL and isinstance(node, ast.keyword) and node.arg == "shell":
            continue
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & EXECUTES_WHAT_IT_READS
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in EXECUTES_WHAT_IT_READS
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "shell"):
            assert isinstance(node.value, ast.Constant) and node.value.value is False, ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg == "safe_mode":
            assert not (isinstance(node.value, ast.Constant) and node.value.value is False)
        elif isinstance(node, ast.Attribute):
            # The methods of mpi4py in lower case pickle what they send.
            pickling = {"send", "recv", "bcast", "gather", "allgather", "scatter", "alltoall", "reduce", "isend"}
            assert not (ast.unparse(node.value).endswith("_intra") and node.attr in pickling), ast.unparse(node)
            assert ast.unparse(node) not in ("os.system", "os.popen", "subprocess.getoutput"), ast.unparse(node)
            # `loopback` has none of its own: what mpirun has opened to every network becomes one of this host.
            assert node.attr != "AF_INET" or file.name == "loopback.py", "a port beside MPI's own"


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o711])
def test_nothing_is_read_in_a_folder_that_others_can_enter(mode, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    Folder(str(folder))
    folder.chmod(mode)
    with pytest.raises(EasyScaleError, match=f"must be this user's, and closed to others. Received: .* mode {mode:o}"):
        Folder(str(folder))


SCRIPT = """
import os, sys
if int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]) == 1:
    print(repr((sys.argv[1:], os.environ["EASYSCALE_TEST_VALUE"])))
"""


def test_arguments_and_environment_pass_through_no_shell(tmp_path):
    script, canary = tmp_path / "a script; touch x.py", tmp_path / "canary"
    script.write_text(SCRIPT)
    arguments = [f"$(touch {canary})", f"`touch {canary}`", f"; touch {canary}", "a\nb", "'", '"', "*", ""]
    environment = {**os.environ, "EASYSCALE_TEST_VALUE": f"$(touch {canary}) ; 'x\""}
    command = [sys.executable, "-m", "easyscale", "launch", "-n", "2", str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[1] {(arguments, environment['EASYSCALE_TEST_VALUE'])!r}\n"
    assert not canary.exists()
