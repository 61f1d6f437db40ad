"""The entry point: help, version, and errors of one line."""

import functools
import os
import signal
import subprocess
import sys

import pytest

import easyscale

HEAVY = ("tensorflow", "keras", "mpi4py", "rich", "matplotlib", "easyscale.exchange")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\ntry:\n    {statement}\nexcept SystemExit: pass\nprint('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.rpartition("loaded")[2].split())


@pytest.mark.parametrize(
    "statement",
    ["import easyscale", "from easyscale.cli.main import main; main(['--help'])", "import easyscale.cli.launch.job"],
)
def test_nothing_heavy_is_loaded(statement):
    assert loaded_by(statement).isdisjoint(HEAVY)


def test_launch_and_bench_load_neither_tensorflow_nor_keras_nor_mpi4py(script):
    path = script("")
    for arguments in (
        ["launch", "--dry-run", "-n", "2", "--exchange", "ring", "--replication", "between_graph", path],
        ["bench", "exchange", "--exchanges", "ring", "--sizes", "4QB"],
    ):
        loaded = loaded_by(f"from easyscale.cli.main import main; main({arguments})")
        assert loaded.isdisjoint(("tensorflow", "keras", "mpi4py"))


def test_version(cli):
    assert cli("--version").output == f"easyscale {easyscale.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["bench"], ["bench", "--help"]])
def test_help_lists_the_commands(cli, arguments):
    result = cli(*arguments)
    assert result.exit_code == 0
    assert ("exchange" if arguments[:1] == ["bench"] else "launch") in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["lunch"],
            "the command must be one of ['bench', 'doctor', 'launch', 'plan', 'verify']. Received: 'lunch'. "
            "Did you mean 'launch'?",
        ),
        (["run", "train.py"], "Received: 'run'. Did you mean 'launch'?"),
        (["bench", "run"], "the command must be one of ['exchange', 'fit', 'suite']. Received: 'run'.\n"),
        (
            ["bench", "exchnge"],
            "the command must be one of ['exchange', 'fit', 'suite']. Received: 'exchnge'. Did you mean 'exchange'?",
        ),
        (["--versoin"], "there is no option '--versoin'. Did you mean '--version'?"),
        (["launch", "--exchnge", "ring"], "there is no option '--exchnge'. Did you mean '--exchange'?"),
        (["launch", "-z"], "there is no option '-z'. See `easyscale launch --help`"),
        (["launch", "-n"], "Option '-n' requires an argument."),
        (["launch", "-n", "four", "a.py"], "-n must be a whole number, 'auto' or 'gpu'. Received: 'four'. "),
        (["launch", "--restarts", "-1", "a.py"], "--restarts must be a whole number from 0. Received: -1. See"),
        (["launch", "--stall-timeout", "abc", "a.py"], "--stall-timeout must be a number from 0. Received: 'abc'. See"),
        (["launch", "--log-dir", "", __file__], "--log-dir must be a folder. Received: --log-dir ''. Name one"),
        (["doctor", "extra"], "there must be no such argument. Received: extra. See `easyscale doctor --help`"),
        (["launch"], "Missing argument 'SCRIPT'. See `easyscale launch --help`"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli, arguments, message):
    result = cli(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert result.stderr.startswith("easyscale launch: " if arguments[0] == "launch" else "easyscale")


def interrupted(code: str) -> subprocess.CompletedProcess:
    not_ignored = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # it is in the background
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=not_ignored)


def test_a_ctrl_c_while_the_command_loads_is_no_traceback():
    code = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv[0] = "/somewhere/bin/easyscale"
from easyscale.cli.main import main
main()
"""
    done = interrupted(code)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_ctrl_c_is_an_exit_code_once_the_command_runs(script):
    code = """
import os, signal, sys
sys.argv = ["/somewhere/bin/easyscale", "--help"]
from easyscale.cli import main
main.Folder.main = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
main.main()
"""
    done = interrupted(code)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(("words", "found"), [("lau", "launch"), ("launch --exch", "--exchange")])
def test_the_shell_completes_commands_and_options(program, words, found):
    asks = {"_EASYSCALE_COMPLETE": "bash_complete", "COMP_WORDS": f"easyscale {words}"}
    asks["COMP_CWORD"] = str(len(words.split()))
    done = subprocess.run([program], env={**os.environ, **asks}, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [f"plain,{found}"], done.stderr
