"""The backend that Keras uses or, before its import, will use, and checks that it is installed. Does not load Keras.

Keras imports its backend during its own import. If the backend is missing, the error names a module that means nothing
to a user who has not chosen it. `watch` reports the rule and the remedy instead.
"""

import os
from pathlib import Path

from easyscale.errors import EasyScaleError
from easyscale.when_imported import before_import

__all__ = ["check_choice", "check_installed", "chosen", "watch"]

_DEFAULT = "tensorflow"  # Keras's default
_EXTRAS = ("tensorflow", "torch", "jax")  # backends that are an extra of this package


def chosen() -> str:
    """Return the backend that Keras would use if imported now: from `KERAS_BACKEND`, else from `keras.json`."""
    import json  # lazy, to keep `import easyscale` fast

    if asked := os.environ.get("KERAS_BACKEND"):
        return asked
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        return str(json.loads((folder / "keras.json").read_text()).get("backend", _DEFAULT))
    except (OSError, ValueError, AttributeError):
        return _DEFAULT


def check_installed() -> None:
    """Raise `EasyScaleError` if the backend that Keras will use is not installed, or does not exist.

    An installed backend that EasyScale does not support is accepted: it may train in a single process.
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
    """Raise `EasyScaleError` if `KERAS_BACKEND` differs from the backend that Keras uses."""
    asked = os.environ.get("KERAS_BACKEND")
    if asked and asked != used:
        raise EasyScaleError(
            f"KERAS_BACKEND must be set before Keras is imported. Received: KERAS_BACKEND={asked} and a Keras that "
            f"uses '{used}'. Set it where the script is started: KERAS_BACKEND={asked} easyscale launch -n 2 train.py"
        )


def watch() -> None:
    """Call `check_installed` when Keras is about to be imported, by any module."""
    before_import("keras", check_installed)
