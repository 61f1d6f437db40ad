"""One draw: a value of each dimension, and the seed of its weights and data."""

import json
import random
from collections.abc import Mapping

from fuzz.dimensions import DIMENSIONS
from fuzz.dimensions.distribution import SAID
from fuzz.dimensions.parallel import refused

__all__ = ["Case", "draw"]

_ACCEPTED = 0.85


class Case(Mapping):
    """What each dimension's value is called.

    Args:
        seed: Int.
        chosen: Dict. Dimension -> value; those that are not named, or do not fit, have the simplest value.
    """

    def __init__(self, seed: int, chosen: Mapping[str, str]):
        self.seed = seed
        self._values = {name: dimension.simplest for name, dimension in DIMENSIONS.items()}
        if unknown := set(chosen) - set(self._values):
            raise ValueError(f"a case must have known dimensions. Received: {', '.join(sorted(unknown))}")
        for name, dimension in DIMENSIONS.items():
            value = chosen.get(name, dimension.simplest)
            if value not in dimension.values:
                raise ValueError(f"`{name}` must be one of {list(dimension.values)}. Received: {value!r}")
            self._values[name] = value
            is_said = name in SAID and self._values["auto"] == "yes"
            if value != dimension.simplest and (is_said or not dimension.fits(self)):
                self._values[name] = dimension.simplest

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def source(self, name: str) -> str:
        """Return the source of the value of a dimension."""
        return DIMENSIONS[name].values[self[name]]

    def arguments_of(self, call: str) -> str:
        """Return the arguments that dimensions give to a call, such as `, momentum=0.9`."""
        given = {
            dimension.argument or dimension.name: self.source(dimension.name)
            for dimension in DIMENSIONS.values()
            if dimension.argument_of == call and self.source(dimension.name)
        }
        return "".join(f", {name}={source}" for name, source in given.items())

    @property
    def chosen(self) -> dict[str, str]:
        """The values that are not the simplest."""
        return {name: value for name, value in self.items() if value != DIMENSIONS[name].simplest}

    def but(self, **changes: str) -> "Case":
        """Return a case with other values."""
        return Case(self.seed, {**self.chosen, **changes})

    def __str__(self) -> str:
        return json.dumps({"seed": self.seed, **self.chosen})

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Return the case that `str` has made `text` of."""
        chosen = json.loads(text)
        return cls(chosen.pop("seed"), chosen)


def draw(seed: int, fixed: Mapping[str, str] | None = None) -> Case:
    """Return the case of a seed. In each dimension all values but the simplest are equally likely.

    Where gradients travel in a form, they are of float32. Where workers divide the model, most cases do without what is
    refused there.

    Args:
        seed: Int.
        fixed: Dict. Values that are not drawn. Defaults to `None`.
    """
    chosen = {}
    for name, dimension in DIMENSIONS.items():
        generator = random.Random(f"{name} {seed}")  # so that a new dimension changes no other
        others = [value for value in dimension.values if value != dimension.simplest]
        if others and generator.random() < dimension.chance:
            chosen[name] = generator.choice(others)
    if "compression" in {**chosen, **(fixed or {})}:
        chosen["precision"] = "float32"  # of which gradients travel in a form
    fixed = fixed or {}
    case = Case(seed, {**chosen, **fixed})
    if random.Random(f"refused {seed}").random() < _ACCEPTED:
        for _ in range(2):  # `auto`, the simplest of splits, is refused what others are not
            case = case.but(**{name: DIMENSIONS[name].simplest for name in refused(case) if name not in fixed})
    return case
