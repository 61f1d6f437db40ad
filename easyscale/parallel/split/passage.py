"""One call of a split layer in a step, on a worker that has a batch."""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from easyscale.parallel.split.kinds import Kind
from easyscale.parallel.split.trip import Trip
from easyscale.step.agreement import Purpose
from easyscale.step.shared import Shared

__all__ = ["CallPart", "Part", "Passage"]

_CALLS = 1 << 16  # maximum per layer and step
_FORMS = 1 << 10


class Part(enum.IntEnum):
    """The collective parts of a passage, each preceded by a meeting of the ranks."""

    FORWARD = 0  # rows to the owners, and results back
    BACKWARD = 1  # gradients of the results to the owners
    INPUTS = 2  # gradients of the rows back, if something before the layer needs them


class CallPart(NamedTuple):
    """The point in a step at which ranks meet, the same on all of them.

    Attributes:
        layer: Int. The number of a layer among those that are split.
        call: Int. The number of one of its calls in the step.
        part: `Part`.
        form: Int. A further description of the call; see `Kind.call`. Defaults to 0.

    Example:

    >>> CallPart.of(CallPart(3, 1, Part.BACKWARD).detail)
    CallPart(layer=3, call=1, part=<Part.BACKWARD: 1>, form=0)
    """

    layer: int
    call: int
    part: Part
    form: int = 0

    @property
    def detail(self) -> int:
        """All fields encoded as one number, which ranks send each other: see `Agreed`."""
        return ((self.layer * _CALLS + self.call) * _FORMS + self.form) * len(Part) + self.part

    @classmethod
    def of(cls, detail: int) -> "CallPart":
        """Decode a `detail`."""
        number, part = divmod(detail, len(Part))
        number, form = divmod(number, _FORMS)
        return cls(*divmod(number, _CALLS), Part(part), form)


class Passage:
    """Moves rows to the owners of a layer's slices, and results back, with the gradients of both.

        forward      rows   --to_owners-->  compute, at the owner  --to_workers-->  results
        backward     g/s    <--INPUTS--     compute's gradient     <--BACKWARD--    s g

    A gradient `g` of a worker's loss is sent times `s = n_r / sum_r(n_r)`, its fraction of the step's samples. So an
    owner's gradient of its slice is that of the loss over all samples, like the mean over workers. On the way back the
    factor is divided out.

    Args:
        kind: `Kind`.
        trip: `Trip`, of this call.
        layer: Int. The number of the layer: see `CallPart`.
        call: Int. The number of the call.
        owned: Range. See `Kind.compute`.
        shared: The `Shared` of the communicator.
    """

    def __init__(self, kind: Kind, trip: Trip, layer: int, call: int, owned: range, shared: Shared):
        self._kind, self._trip, self._layer, self._call, self._shared = kind, trip, layer, call, shared
        self._owned = owned
        self._dtype, self._form, self._share = np.dtype(kind.layer.compute_dtype), 0, 1.0

    def __call__(self, weight: Any, tensors: list[Any], form: int = 0) -> Any:
        """Return the rows that come back, in the graph.

        Args:
            weight: Scalar tensor or number. This worker's samples in the step.
            tensors: List. The tensors for the owners; those with gradients come first.
            form: Int. See `Kind.call`.
        """
        self._form = form
        return self._back(self._kind.compute(self._there(tensors), form, self._owned), weight)

    def _there(self, tensors: list[Any]) -> list[Any]:
        specs = [
            (tuple(tensor.shape[1:]), np.dtype(keras.backend.standardize_dtype(tensor.dtype))) for tensor in tensors
        ]
        own = [((None, *shape), dtype) for shape, dtype in specs]
        at_owner = [((None, *map(self._trip.width_at_owner, shape)), dtype) for shape, dtype in specs]
        count = sum(dtype.kind == "f" for _, dtype in specs)
        if not count:
            return self._shared.call(self._to_owners, tensors, at_owner)

        @keras.ops.custom_gradient
        def there(*floats: Any) -> tuple[Any, Callable]:
            def gradient(*arrived: Any) -> Any:
                return self._shared.call(self._gradients_to_workers, arrived[:count], own[:count])

            return self._shared.call(self._to_owners, [*floats, *tensors[count:]], at_owner), gradient

        return list(there(*tensors[:count]))

    def _back(self, computed: Any, weight: Any) -> Any:
        *between, width = computed.shape[1:]
        at_owner = (None, *between, width), self._dtype
        own = (None, *between, self._trip.width_at_worker(width)), self._dtype

        @keras.ops.custom_gradient
        def back(computed: Any) -> tuple[Any, Callable]:
            def gradient(arrived: Any) -> Any:
                inputs = [keras.ops.cast(weight, "float64"), arrived]
                return self._shared.call(self._gradients_to_owners, inputs, [at_owner])[0]

            return self._shared.call(self._to_workers, [computed], [own])[0], gradient

        return back(computed)

    # Called by the graph, with arrays

    def _meet(self, part: Part, weight: float = 0.0) -> float:
        if not self._shared.together:
            layer = self._kind.layer
            raise ValueError(
                f"a split layer computes in the steps and validations of a `fit()`. Received: a call of '{layer.name}' "
                "in it by one worker alone. Call `model.predict` or `model.evaluate`, or wait for the end of `fit()`"
            )
        detail = CallPart(self._layer, self._call, part, self._form).detail
        return self._shared.meet(Purpose.ACTIVATIONS, detail, weight).share

    def _to_owners(self, *rows: np.ndarray) -> list[np.ndarray]:
        self._meet(Part.FORWARD)
        return self._trip.give(rows)

    def _to_workers(self, rows: np.ndarray) -> list[np.ndarray]:
        return [self._trip.to_workers(rows)]

    def _gradients_to_owners(self, weight: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        self._share = self._meet(Part.BACKWARD, float(weight))
        return [self._trip.gradients_to_owners(rows * rows.dtype.type(self._share))]

    def _gradients_to_workers(self, *rows: np.ndarray) -> list[np.ndarray]:
        self._meet(Part.INPUTS)
        arrived = [self._trip.gradients_to_workers(array) for array in rows]
        return [array / array.dtype.type(self._share or 1.0) for array in arrived]
