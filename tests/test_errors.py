import subprocess
import sys

import pytest

from easyscale import errors
from easyscale.errors import DesyncError, EasyScaleError, EasyScaleWarning, LaunchError, PeerError, unknown


@pytest.mark.parametrize("error", [LaunchError, DesyncError, PeerError])
def test_every_error_is_an_easyscale_error_and_no_value_error(error):
    assert issubclass(error, EasyScaleError)
    assert not issubclass(error, (ValueError, TypeError, OSError))


def test_the_warning_is_a_user_warning():
    assert issubclass(EasyScaleWarning, UserWarning)
    assert not issubclass(EasyScaleWarning, EasyScaleError)


def test_the_tree_in_the_docstring_is_the_tree():
    tree = errors.__doc__.split("\n\n")[1]
    drawn = {line.strip(" ├└─").split()[0] for line in tree.splitlines()}
    assert drawn == set(errors.__all__)
    below = {line.strip(" ├└─").split()[0] for line in tree.splitlines() if "─" in line}
    public = [cls for cls in EasyScaleError.__subclasses__() if cls.__module__ == errors.__name__]
    assert below == {cls.__name__ for cls in public}


@pytest.mark.parametrize(
    "value, hint",
    [
        ("rnig", ". Did you mean 'ring'?"),
        ("treee", ". Did you mean 'tree'?"),
        ("xyz", ""),
        (None, ""),
        (["ring"], ". Did you mean 'ring'?"),
    ],
)
def test_unknown_names_the_valid_ones_and_the_nearest(value, hint):
    message = unknown("exchange", value, ["ring", "tree"])
    assert message == f"`exchange` must be one of ['ring', 'tree']. Received: exchange={value!r}{hint}"


def test_unknown_says_what_else_is_valid():
    message = unknown("exchange", "a", ["ring"], " or an `Exchange`")
    assert message == "`exchange` must be one of ['ring'] or an `Exchange`. Received: exchange='a'"


def _uncaught(error):
    script = f"from easyscale import errors; errors.show_in_one_line(); raise {error}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    return done.stderr


def test_an_error_that_nobody_catches_is_one_line_if_it_is_easyscales():
    assert _uncaught("errors.PeerError('it left')") == "PeerError: it left\n"
    foreign = _uncaught("KeyError('mine')")
    assert foreign.startswith("Traceback (most recent call last)")
    assert foreign.endswith("KeyError: 'mine'\n")


def test_a_wrong_argument_is_one_line_that_names_the_scripts_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import easyscale.errors\neasyscale.errors.show_in_one_line()\neasyscale.local_batch(0)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == (
        "ValueError: `global_batch` must be a positive multiple of the number of workers, 1. "
        f"Received: global_batch=0. Try 1 ({script}, line 3)\n"
    )


def test_a_warning_is_one_line_and_others_stay_as_they_are():
    script = "import warnings; from easyscale import errors; errors.show_in_one_line(); "
    script += "warnings.warn('hardly', errors.EasyScaleWarning); warnings.warn('else')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stderr == "EasyScaleWarning: hardly\n<string>:1: UserWarning: else\n"
