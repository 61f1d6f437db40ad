"""Entry point of each rank of `easyscale launch --auto`; its arguments are a script and the script's arguments.

Runs the script as Python would. Keras is patched when the script imports it, so a script without Keras never loads it.
All ranks start with the same seeds, so the script draws the same random numbers on each of them.
"""

import functools
import os
import random
import sys
from typing import Any

import numpy as np

from easyscale.as_main import run_as_main
from easyscale.auto.files import forgive_folders_of_others
from easyscale.auto.moves import Moves
from easyscale.settings import Settings
from easyscale.when_imported import when_imported

__all__ = ["main"]


def main() -> None:
    """Run the script. Its exceptions propagate unchanged."""
    seed = Settings.read().auto
    assert seed is not None, "`easyscale launch --auto` says it"
    _seed_all(seed)
    for name in ("tensorflow", "torch"):
        when_imported(name, functools.partial(_seed, name, seed))
    moves = Moves()
    forgive_folders_of_others(moves.note)
    moves.install()
    when_imported("keras", functools.partial(_install, os.getpid(), moves), through=["easyscale.optimizer"])
    run_as_main(sys.argv[1:])


def _seed_all(seed: int) -> None:
    """Seed `random` and NumPy the same on all ranks, including generators made without a seed."""
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


def _install(rank_process: int, moves: Moves) -> None:
    if os.getpid() == rank_process:  # a process forked by the script is not a rank; it trains on its own
        from easyscale.auto import model

        model.install(moves)


if __name__ == "__main__":
    main()
