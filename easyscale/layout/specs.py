"""Shape and dtype of an array, and the interface of a variable."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import ml_dtypes  # noqa: F401  # whose types, such as bfloat16, NumPy then knows by name
import numpy as np

__all__ = ["Spec", "Variable", "specs_of"]


class Spec(NamedTuple):
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Variable(Protocol):
    """A variable of Keras or of its backend."""

    name: str

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...

    def assign(self, value: Any) -> Any: ...


def specs_of(variables: Sequence[Variable]) -> list[Spec]:
    """Return the `Spec` of each variable."""
    # TensorFlow's own dtype, or a name.
    dtypes = [getattr(variable.dtype, "as_numpy_dtype", variable.dtype) for variable in variables]
    return [Spec(tuple(variable.shape), np.dtype(dtype)) for variable, dtype in zip(variables, dtypes, strict=True)]
