"""The content of a checkpoint of a `fit()`, and its validation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from easyscale.errors import EasyScaleError, is_number

__all__ = ["VERSION", "check_contents"]

VERSION = 1  # of the content of a checkpoint


def check_contents(about: Any, folder: Path) -> None:
    """Raise `EasyScaleError` unless this is a result of `WholeState.collect`. It may come from anywhere.

    Args:
        about: The decoded JSON.
        folder: `Path`. The folder that it is from.
    """
    version = about.get("version") if isinstance(about, dict) else None
    if is_number(version, above=VERSION, whole=True):
        raise EasyScaleError(
            f"a checkpoint must be of this version of EasyScale, or an earlier one. Received: version {version} in "
            f"'{folder}', which is later than {VERSION}. Install the EasyScale that has written it"
        )
    if not isinstance(about, dict) or version != VERSION or not _is_complete(about):
        raise EasyScaleError(
            f"a checkpoint must be one that EasyScale has written. Received: another file in '{folder}'. Remove it, or "
            "use another folder"
        )


def _is_complete(about: dict) -> bool:
    is_count = lambda value: is_number(value, 0, whole=True)
    ranks: list[Any] = [about.get(name) for name in ("data", "random", "seeds")]
    return (
        all(is_count(about.get(name)) for name in ("epoch", "steps"))
        and all(isinstance(about.get(name), bool) for name in ("ended", "stopped"))
        and all(isinstance(about.get(name), list) for name in ("weights", "optimizers", "callbacks"))
        and all(
            isinstance(weight, list) and len(weight) == 2 and isinstance(weight[0], str) for weight in about["weights"]
        )
        and all(
            isinstance(callback, dict) and isinstance(callback.get("state"), dict) for callback in about["callbacks"]
        )
        and all(isinstance(values, list) and values for values in ranks)
        and len({len(values) for values in ranks}) == 1
        and all(_is_position(position, is_count) for position in about["data"])
    )


def _is_position(position: Any, is_count: Callable[[Any], bool]) -> bool:
    if not isinstance(position, dict) or not isinstance(batch := position.get("batch", {}), dict):
        return False
    counts = [position.get(name) for name in ("iterators", "batches", "calls")]
    return all(map(is_count, [*counts, *batch.values()]))
