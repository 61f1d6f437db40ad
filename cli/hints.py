"""What may have made several processes take other steps than one, as far as `easyscale verify` can tell."""

from collections.abc import Sequence

from easyscale.cli.recorded import Recorded

__all__ = ["find"]

_ROUNDING = 1e-4  # what rounding in float32 may come to


def find(one: Recorded, several: Recorded, warnings: Sequence[str], difference: float) -> list[str]:
    """Return hints for the user, the surest first.

    Args:
        one: `Recorded`, of one process.
        several: `Recorded`.
        warnings: What EasyScale has warned of on the several processes.
        difference: Float. The largest of the first step that differs.
    """
    hints = list(warnings)
    for end in sorted({*one.step_ends} & {*several.step_ends})[:1]:
        for mine, theirs in zip(one.metrics(end), several.metrics(end), strict=True):
            if mine.name == "loss" and mine.count != theirs.count:
                hints.append(
                    f"in {one.step(end)} one process trains on {mine.count:g} samples, {several.ranks} processes on "
                    f"{theirs.count:g}. Divide the data by `easyscale.shard`, the batch by `easyscale.local_batch`"
                )
    if names := one.notes("unsynchronized"):
        hints.append(f"each process normalizes its own part of a batch. Give {_list(names)} `synchronized=True`")
    if names := one.notes("random"):
        hints.append(f"{_list(names)} cannot be compared: it draws random numbers, and has no `training` argument")
    if not hints:
        hints.append(
            "data may not be divided by `easyscale.shard` and `easyscale.local_batch`, or be drawn or split without a "
            "seed; or something outside of layers is random"
        )
    if difference < _ROUNDING:
        hints.append("so little may be rounding in float32, which optimizers such as Adam magnify: --tolerance 1e-4")
    return hints


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
