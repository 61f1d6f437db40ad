"""What may have made several processes take other steps than one, as far as `easyscale verify` can tell."""

from collections import Counter
from collections.abc import Sequence

from easyscale.cli.verify.recorded import Recorded

__all__ = ["find"]

_ROUNDING = 1e-4  # what rounding in float32 may come to


def find(one: Recorded, several: Recorded, warnings: Sequence[str], difference: float, at: int) -> list[str]:
    """Return hints for the user, the surest first.

    Args:
        one: `Recorded`, of one process.
        several: `Recorded`.
        warnings: What EasyScale has warned of on the several processes.
        difference: Float. The largest of the first step that differs.
        at: Int. The number of updates after which that is.
    """
    hints = list(warnings)
    ends = [end for end in sorted({*one.step_ends} & {*several.step_ends}) if end <= max(at, *one.step_ends[:1])]
    batches = [(end, one.batch(end), several.batch(end)) for end in ends]
    known = [(end, local, theirs) for end, local, theirs in batches if local is not None and theirs is not None]
    are_known = bool(batches) and len(known) == len(batches)
    if are_known:
        hints += [_tell_of_other_samples(one, several, *batch) for batch in known if batch[1] != batch[2]][:1]
    else:
        hints += _tell_of_counts(one, several, ends[:1])
    if names := one.notes("unsynchronized"):
        hints.append(f"each process normalizes its own part of a batch. Give {_list(names)} `synchronized=True`")
    if names := one.notes("random"):
        hints.append(f"{_list(names)} cannot be compared: it draws random numbers, and has no `training` argument")
    if not hints and are_known:
        hints.append(
            f"data are divided rightly: up to {one.step(ends[-1])} all processes together have the samples of one. "
            "What is computed over a whole batch (a loss that compares samples with each other, as contrastive ones "
            "do, a sum of `train_step`'s own, a metric whose states are no sums) is over each process's part of it. "
            "Use `keras.losses`, or means over samples; else train on one process"
        )
    elif not hints:
        hints.append(
            "data may not be divided by `easyscale.shard` and `easyscale.local_batch`, or be drawn or split without a "
            "seed; or something outside of layers is random"
        )
    if difference < _ROUNDING:
        hints.append("so little may be rounding in float32, which optimizers such as Adam magnify: --tolerance 1e-4")
    return hints


def _tell_of_other_samples(one: Recorded, several: Recorded, end: int, local: Counter, theirs: Counter) -> str:
    who, together = f"{several.ranks} processes", (local & theirs).total()
    if local.total() != theirs.total():
        return (
            f"in {one.step(end)} one process trains on {local.total()} samples, {who} on {theirs.total()}. "
            "Divide the data by `easyscale.shard`, once, and the batch by `easyscale.local_batch`"
        )
    return (
        f"in {one.step(end)} {local.total() - together} of the {local.total()} samples that one process trains on are "
        f"not those of {who}. Divide the data by `easyscale.shard`; shuffle, split and augment with a fixed seed"
    )


def _tell_of_counts(one: Recorded, several: Recorded, ends: Sequence[int]) -> list[str]:
    return [
        f"in {one.step(end)} one process trains on {local.count:g} samples, {several.ranks} processes on "
        f"{theirs.count:g}. Divide the data by `easyscale.shard`, once, and the batch by `easyscale.local_batch`"
        for end in ends
        for local, theirs in zip(one.metrics(end), several.metrics(end), strict=True)
        if local.name == "loss" and local.count != theirs.count
    ]


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
