"""Which backend Keras has or, before it is imported, will have; and whether it is installed. Keras is not loaded here.

Keras imports its backend while it is imported itself. Without it the error is one of a missing module, whose name says
nothing to whoever has not chosen it. `watch` has the rule and the remedy said instead.
"""

import os
from pathlib import Path

from easyscale.errors import EasyScaleError
from easyscale.when_imported import before_import

__all__ = ["check_choice", "check_installed", "chosen", "watch"]

_DEFAULT = "tensorflow"  # Keras's own
_EXTRAS = ("tensorflow", "torch", "jax")  # those that are an extra of this package


def chosen() -> str:
    """Return the backend that a Keras will have that is imported now: of `KERAS_BACKEND`, else of its own file."""
    import json  # not before: `import easyscale` is to be quick

    if asked := os.environ.get("KERAS_BACKEND"):
        return asked
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        return str(json.loads((folder / "keras.json").read_text()).get("backend", _DEFAULT))
    except (OSError, ValueError, AttributeError):
        return _DEFAULT


def check_installed() -> None:
    """Raise `EasyScaleError` if the backend that Keras will have is not installed, or does not exist.

    One that is no backend of EasyScale's may train alone.
    """
    from importlib.util import find_spec

    name = chosen()
    if name not in _EXTRAS and find_spec(name.partition(".")[0]) is None:
        raise EasyScaleError(
            f"the backend of Keras must be one of {list(_EXTRAS)} for EasyScale. Received: '{name}', which is not "
            "installed either. Set KERAS_BACKEND=tensorflow"
        )
    if name in _EXTRAS and find_spec(name) is None:
        others = [one for one in _EXTRAS if one != name and find_spec(one) is not None]
        remedy = "".join(f", or set KERAS_BACKEND={one}" for one in others)
        raise EasyScaleError(
            f"the backend of Keras must be installed. Received: '{name}', which is not. "
            f"Run: pip install 'easyscale[{name}]'{remedy}"
        )


def check_choice(used: str) -> None:
    """Raise `EasyScaleError` if `KERAS_BACKEND` says another backend than the one that Keras uses."""
    asked = os.environ.get("KERAS_BACKEND")
    if asked and asked != used:
        raise EasyScaleError(
            f"KERAS_BACKEND must be set before Keras is imported. Received: KERAS_BACKEND={asked} and a Keras that "
            f"uses '{used}'. Set it where the script is started: KERAS_BACKEND={asked} easyscale launch -n 2 train.py"
        )


def watch() -> None:
    """Have `check_installed` called when Keras is about to be imported, whoever does it."""
    before_import("keras", check_installed)
