"""One line of advice: the main cost of a step, such as waiting for a slow rank, and what would help."""

from collections.abc import Sequence

import numpy as np

from easyscale.profiling.gathered import Recorded
from easyscale.timeline import Part

__all__ = ["advise", "waits_for"]

_MUCH = 0.1  # fraction of a step that is worth advice
_MOST = 0.6  # fraction of the waiting from which on a single rank is the cause
_WHY = 0.3  # fraction of the wait for a rank that a part must explain; else the rank starts its steps late
_PREFETCH = "prefetch, as by `dataset.prefetch(tf.data.AUTOTUNE)`, or more `workers` of a `PyDataset`"
_OWN = {  # parts that a rank does by itself, and how to shorten them
    Part.DATA: _PREFETCH,
    Part.PASSES: "give each rank as many samples and cores; `easyscale doctor` shows the cores",
    Part.PACK: "give each rank as many cores; `easyscale doctor` shows them",
    Part.UPDATE: "give each rank as many cores; `easyscale doctor` shows them",
    Part.CALLBACKS: "let callbacks do less in each step, or only every so many steps",
    Part.CHECKPOINT: "write checkpoints less often, by `every`",
    Part.OTHER: "see whether something else runs on its cores",
}
_TOGETHER = (Part.PACK, Part.EXCHANGE, Part.GATHER)


def waits_for(ranks: Sequence[Recorded]) -> list[float]:
    """Return, for each rank, the seconds of a step that the others wait for it, averaged over them.

    In each step, the rank that waits least has come last, so the others wait for it.
    """
    numbers = [number for number in ranks[0].waits if all(number in rank.waits for rank in ranks)]
    if not numbers:
        return [0.0] * len(ranks)
    waits = np.array([[rank.waits[number] for number in numbers] for rank in ranks])
    last, waited = waits.argmin(axis=0), (waits - waits.min(axis=0)).sum(axis=0) / max(1, len(ranks) - 1)
    return [float(waited[last == rank].sum()) / len(numbers) for rank in range(len(ranks))]


def advise(ranks: Sequence[Recorded]) -> str:
    """Return the largest saving of time that is possible, and what would help.

    Args:
        ranks: The recordings of all ranks.
    """
    step = max(rank.step for rank in ranks)  # that of a rank that waits, if there is one, so waiting is included
    waits = waits_for(ranks)
    if not step:
        return "no step was recorded behind the first one, which is traced"
    waited = sum(waits)
    if waited >= _MUCH * step:
        last = max(range(len(ranks)), key=waits.__getitem__)
        if waits[last] < _MOST * waited:
            return (
                f"{waited / step:.0%} of a step waits for other ranks, now for one and now for another: give each as "
                "many samples in each step, and see whether something else runs on their cores"
            )
        return _about(ranks, last, waits[last], waits[last] / step)
    means = {name: sum(rank.parts.get(name, 0.0) for rank in ranks) / len(ranks) / step for name in Part.ALL}
    together = sum(means[name] for name in _TOGETHER)
    shares = {name: means[name] for name in (Part.DATA, Part.CALLBACKS, Part.CHECKPOINT)}
    most = max(shares, key=shares.__getitem__)
    if max(together, shares[most]) < _MUCH:
        computes = means[Part.PASSES] + means[Part.UPDATE]
        return f"{computes:.0%} of a step computes, {together:.0%} is spent on the exchange: there is little to gain"
    if together >= shares[most]:
        return (
            f"{together:.0%} of a step is the exchange: larger batches, `compression`, or another exchange, see "
            "`easyscale bench exchange`"
        )
    return f"{shares[most]:.0%} of a step is {most}: {_OWN[most]}"


def _about(ranks: Sequence[Recorded], last: int, waited: float, share: float) -> str:
    """Return why a rank comes last: the part that takes longer on it than on the others."""
    others = [rank for number, rank in enumerate(ranks) if number != last]
    own = ranks[last].parts
    more = {name: own.get(name, 0.0) - sum(rank.parts.get(name, 0.0) for rank in others) / len(others) for name in _OWN}
    why = max(more, key=more.__getitem__)
    whom = f"{share:.0%} of a step waits for rank {ranks[last].rank} on {ranks[last].host}"
    if more[why] < _WHY * waited:
        return (
            f"{whom}, which comes late to its steps: see what it does between epochs, and whether its cores are its own"
        )
    took, longer = 1e3 * own.get(why, 0.0), 1e3 * more[why]
    takes = "take" if why.endswith("s") else "takes"
    return f"{whom}, whose {why} {takes} {took:.3g} ms, {longer:.3g} ms more than that of others: {_OWN[why]}"
