"""The smallest case that still fails: one dimension after the other gets its simplest value, or a simpler one."""

from collections.abc import Callable, Collection

from fuzz.case import Case
from fuzz.dimensions import DIMENSIONS

__all__ = ["shrink"]


def shrink(case: Case, fails: Callable[[Case], bool], budget: int = 80, keep: Collection[str] = ()) -> Case:
    """Return a case that fails as `case` does, and no longer if any of its dimensions gets a simpler value.

    Args:
        case: `Case` that fails.
        fails: Function. Whether a case fails in the same way.
        budget: Int. How many cases may be tried. Defaults to `80`.
        keep: Names of dimensions whose values stay. Defaults to none.
    """
    tried = {str(case)}
    changed = True
    while changed and budget > 0:
        changed = False
        for smaller in _smaller(case, keep):
            if str(smaller) in tried or budget <= 0:
                continue
            tried.add(str(smaller))
            budget -= 1
            if fails(smaller):
                case, changed = smaller, True
                break
    return case


def _smaller(case: Case, keep: Collection[str]):
    chosen = case.chosen
    # First many at once: half of what is chosen, from either end.
    names = [name for name in chosen if name not in keep]
    if len(names) > 3:
        half = len(names) // 2
        for left_out in (names[half:], names[:half]):
            yield Case(case.seed, {name: value for name, value in chosen.items() if name not in left_out})
    for name in reversed(names):
        yield case.but(**{name: DIMENSIONS[name].simplest})
    for name in reversed(names):  # what stays, simpler: values that stand before it
        values = list(DIMENSIONS[name].values)
        for value in values[1 : values.index(chosen[name])][:3]:
            yield case.but(**{name: value})
