"""What each rank of `easyscale launch --auto` runs; its arguments are a script and what that is given.

The script is run as Python would. Keras is changed from the moment the script imports it, so that a script without it
does not load it. All ranks have the same seeds at first, so that what the script draws at random is the same on all.
"""

import functools
import os
import random
import sys
from typing import Any

import numpy as np

from easyscale.as_main import run_as_main
from easyscale.auto.files import forgive_folders_of_others
from easyscale.settings import Settings
from easyscale.when_imported import when_imported

__all__ = ["main"]


def main() -> None:
    """Run the script. An error of the script's is raised as it is."""
    seed = Settings.read().auto
    assert seed is not None, "`easyscale launch --auto` says it"
    _seed_all(seed)
    for name in ("tensorflow", "torch"):
        when_imported(name, functools.partial(_seed, name, seed))
    forgive_folders_of_others()
    when_imported("keras", functools.partial(_install, os.getpid()), through=["easyscale.optimizer"])
    run_as_main(sys.argv[1:])


def _seed_all(seed: int) -> None:
    """Let what draws at random without a seed of its own draw the same on all ranks."""
    random.seed(seed)
    np.random.seed(seed)
    make, seeds = np.random.default_rng, np.random.SeedSequence(seed)

    @functools.wraps(make)
    def default_rng(seed: Any = None) -> np.random.Generator:
        return make(seeds.spawn(1)[0] if seed is None else seed)

    np.random.default_rng = default_rng


def _seed(name: str, seed: int) -> None:
    module = sys.modules[name]
    module.random.set_seed(seed) if name == "tensorflow" else module.manual_seed(seed)


def _install(rank_process: int) -> None:
    if os.getpid() == rank_process:  # what the script forks is no rank, and trains alone
        from easyscale.auto import model

        model.install()


if __name__ == "__main__":
    main()
