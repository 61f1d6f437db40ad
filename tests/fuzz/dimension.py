"""One thing in which training scripts differ."""

import dataclasses
from collections.abc import Callable, Mapping

__all__ = ["Dimension"]


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One thing in which training scripts differ.

    Args:
        name: String.
        values: Dict. What a value is called -> its source in a script; the simplest first.
        chance: Float. How often a drawn case has another value than the simplest.
        argument_of: String. The call that gets the source as argument `name`, if it is not empty: `"optimizer"`,
            `"compile"`, `"fit"`, `"distribute"` or `"layer"`, the first with weights. Defaults to `""`: `script.py`
            knows what to do with it.
        fits: Function. Whether a case can have its value of this dimension; else it has the simplest. It may look at
            this dimension and at those before.
        argument: String. The argument's name. Defaults to `""`: `name`.
    """

    name: str
    values: Mapping[str, str]
    chance: float = 0.2
    argument_of: str = ""
    fits: Callable[[Mapping[str, str]], bool] = lambda case: True
    argument: str = ""

    @property
    def simplest(self) -> str:
        """What the simplest value is called."""
        return next(iter(self.values))
