"""Likely reasons why several processes took different steps than one, as far as `easyscale verify` can tell."""

from collections import Counter
from collections.abc import Sequence

from easyscale.cli.verify.recorded import Recorded

__all__ = ["find"]

_ROUNDING = 1e-4  # the largest effect that float32 rounding may have


def find(reference: Recorded, several: Recorded, warnings: Sequence[str], difference: float, at: int) -> list[str]:
    """Return hints for the user, the most certain first.

    Args:
        reference: `Recorded`, of one process.
        several: `Recorded`.
        warnings: EasyScale's warnings on the several processes.
        difference: Float. The largest difference in the first step that differs.
        at: Int. The number of updates after which it was found.
    """
    hints = list(warnings)
    ends = [
        end for end in sorted({*reference.step_ends} & {*several.step_ends}) if end <= max(at, *reference.step_ends[:1])
    ]
    batches = [(end, reference.batch(end), several.batch(end)) for end in ends]
    known = [(end, local, other) for end, local, other in batches if local is not None and other is not None]
    are_known = bool(batches) and len(known) == len(batches)
    if are_known:
        hints += [_tell_of_other_samples(reference, several, *batch) for batch in known if batch[1] != batch[2]][:1]
    else:
        hints += _tell_of_counts(reference, several, ends[:1])
    if names := reference.notes("unsynchronized"):
        hints.append(
            f"each process normalizes its own part of a batch. On TensorFlow, give {_list(names)} `synchronized=True`, "
            "which Keras does not have on other backends: there it stays so, or use such as `LayerNormalization`"
        )
    if names := reference.notes("random"):
        hints.append(f"{_list(names)} cannot be compared: it draws random numbers, and has no `training` argument")
    if not hints and are_known:
        hints.append(
            f"data are divided rightly: up to {reference.step(ends[-1])} all processes together have the samples of "
            "one. What is computed over a whole batch (a loss that compares samples with each other, as contrastive "
            "ones do, a sum of `train_step`'s own, a metric whose states are no sums) is over each process's part of "
            "it. Use `keras.losses`, or means over samples; else train on one process"
        )
    elif not hints:
        hints.append(
            "data may not be divided by `easyscale.shard` and `easyscale.local_batch`, or be drawn or split without a "
            "seed; or something outside of layers is random"
        )
    if difference < _ROUNDING:
        hints.append("so little may be rounding in float32, which optimizers such as Adam magnify: --tolerance 1e-4")
    return hints


def _tell_of_other_samples(reference: Recorded, several: Recorded, end: int, local: Counter, other: Counter) -> str:
    who, together = f"{several.ranks} processes", (local & other).total()
    if local.total() != other.total():
        return (
            f"in {reference.step(end)} one process trains on {local.total()} samples, {who} on {other.total()}. "
            "Divide the data by `easyscale.shard`, once, and the batch by `easyscale.local_batch`"
        )
    return (
        f"in {reference.step(end)} {local.total() - together} of the {local.total()} samples that one process trains "
        f"on are not those of {who}. Divide the data by `easyscale.shard`; shuffle, split and augment with a fixed seed"
    )


def _tell_of_counts(reference: Recorded, several: Recorded, ends: Sequence[int]) -> list[str]:
    return [
        f"in {reference.step(end)} one process trains on {local.count:g} samples, {several.ranks} processes on "
        f"{other.count:g}. Divide the data by `easyscale.shard`, once, and the batch by `easyscale.local_batch`"
        for end in ends
        for local, other in zip(reference.metrics(end), several.metrics(end), strict=True)
        if local.name == "loss" and local.count != other.count
    ]


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
