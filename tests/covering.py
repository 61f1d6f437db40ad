"""Few rows of a product of lists in which every pair of values still meets.

What two features do to each other shows in a row that has both, whatever the others are; so `make test` runs a covering
array of a product, and `make test-all`, by tests marked `full`, all of it.
"""

import itertools
import os
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["IS_FULL", "covering", "drawn", "full"]

# Whether a file of checks is to run all rows of its products: a launch of tests that are marked `full` sets it.
IS_FULL = os.environ.get("EASYSCALE_TESTS_FULL") == "1"


T = TypeVar("T")


def full(check: T) -> T:
    """Mark a check that `make test-all` runs, and `make test` does not; see `launches.over_ranks`."""
    return check


def covering(**lists: Sequence) -> list[dict]:
    """Return rows with a value of each list, in which each pair of values of any two lists occurs at least once.

    The same lists give the same rows. With `EASYSCALE_TESTS_FULL=1` these are all rows of the product.
    """
    rows = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    missing, chosen = set() if IS_FULL else set().union(*map(_pairs, rows)), set()
    while missing:
        best = max(range(len(rows)), key=lambda index: (len(missing & _pairs(rows[index])), -index))
        chosen.add(best)
        missing -= _pairs(rows[best])
    return rows if IS_FULL else [rows[index] for index in sorted(chosen)]


def _pairs(row: dict) -> set:
    return {*itertools.combinations(((name, repr(value)) for name, value in row.items()), 2)}


_CANDIDATES = 40  # that are drawn for each row


def drawn(allowed: Callable[[dict], bool], **lists: Sequence) -> list[dict]:
    """Return rows of a product that is too large to be looked through, in which each pair of values still meets.

    Rows are drawn at random, from the same seed each time; of each few the one with the most new pairs is taken. Pairs
    that no allowed row has are left out.

    Args:
        allowed: Function of a row. Whether it can be.
        lists: The lists, by name.

    Reference: Cohen et al., "The AETG system", 1997.
    """
    generator, rows, met, dull = random.Random(0), [], set(), 0
    wanted = set()
    for one, other in itertools.combinations(lists, 2):
        wanted |= {((one, repr(a)), (other, repr(b))) for a in lists[one] for b in lists[other]}
    while wanted - met and dull < 500:
        candidates = []
        while len(candidates) < _CANDIDATES:
            row = {name: generator.choice(values) for name, values in lists.items()}
            if wanted - met and not candidates:  # aim at a pair that has not been met
                pair = generator.choice(sorted(wanted - met))
                row |= {name: next(v for v in lists[name] if repr(v) == text) for name, text in pair}
            if allowed(row):
                candidates.append(row)
            else:
                dull += 1
                if dull >= 500:
                    break
        if candidates:
            best = max(candidates, key=lambda row: len(_pairs(row) - met))
            if _pairs(best) - met:
                rows.append(best)
                met |= _pairs(best)
                dull = 0
    return rows
