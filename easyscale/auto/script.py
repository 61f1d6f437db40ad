"""What each rank of `easyscale launch --auto` runs: `python -m easyscale.auto.script SCRIPT [ARGUMENTS]...`.

The script is run as Python would. Keras is changed from the moment the script imports it, so that a script without it
does not load it. All ranks have the same seeds at first, so that what the script draws at random is the same on all.
"""

import functools
import random
import sys

import numpy as np

from easyscale.as_main import run_as_main
from easyscale.settings import Settings
from easyscale.when_imported import when_imported

__all__ = ["main"]


def main() -> None:
    """Run the script. An error of the script's is raised as it is."""
    seed = Settings.read().auto
    assert seed is not None, "`easyscale launch --auto` says it"
    random.seed(seed)
    np.random.seed(seed)
    for name in ("tensorflow", "torch"):
        when_imported(name, functools.partial(_seed, name, seed))
    when_imported("keras", _install, through=["easyscale.optimizer"])
    run_as_main(sys.argv[1:])


def _seed(name: str, seed: int) -> None:
    module = sys.modules[name]
    module.random.set_seed(seed) if name == "tensorflow" else module.manual_seed(seed)


def _install() -> None:
    from easyscale.auto import model

    model.install()


if __name__ == "__main__":
    main()
