"""The gather of a step's new weights while the next step begins. No TensorFlow."""

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from easyscale.layout.shards import Shards
from easyscale.layout.specs import Variable, specs_of
from easyscale.step.background import Background
from easyscale.step.shared import Shared
from easyscale.timeline import Part

__all__ = ["LateGather"]


class Coming(NamedTuple):
    """A bucket of weights in flight.

    Attributes:
        sent: Future. Done when the bucket has arrived.
        wholes: Dict. Maps the number of a variable to its value, complete when `sent` is done.
    """

    sent: "Future[None]"
    wholes: dict[int, np.ndarray]


class LateGather:
    """Delivers weights in the order in which the next step's forward pass reads them.

        step s      ... reduce | update | send
        step s + 1                           receive 0 | receive 1 | ...       forward pass, reduce, ...
        thread                               gather 0, gather 1, ...

    A layer waits for the bucket of its weights and for those before it, and computes while later ones travel. The cost
    is that of a gather after the update, in messages and bytes, plus one Python call per additional bucket. Between
    `send` and `receive` the variables have the previous step's weights: code that reads them outside of a step must
    call `settle` first. Messages have the same order as on a worker that gathers after its update.

    Args:
        shared: The `Shared` of the communicator.
        shards: The `Shards` of the variables.
        variables: The variables.

    References: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", 2019; Peng et
    al., "A generic communication scheduler for distributed DNN training acceleration", 2019.
    """

    def __init__(self, shared: Shared, shards: Shards, variables: Sequence[Variable]):
        self._shared, self._shards, self._variables = shared, shards, variables
        # By bucket number. Kept until the next ones are sent: a step that runs out of data may have received them
        # without assigning them.
        self._coming: dict[int, Coming] = {}
        self._gathered: set[int] = set()  # the numbers of variables that have been gathered before

    def send(self, parts: Mapping[int, Variable]) -> None:
        """Start to send the parts of the variables, by number, that this worker has updated. At the end of a step.

        The parts become views of the variables' new values, so that no weight is stored twice.
        """
        numbers = list(parts)

        def send(*arrays: np.ndarray) -> list[np.ndarray]:
            timeline = self._shared.timeline
            timeline.to(Part.GATHER)
            own = dict(zip(numbers, arrays, strict=True))
            for number, (bucket, vector) in enumerate(self._shards.lay_out(own)):
                gather = timeline.beside(Part.GATHER, self._shards.gather_bucket, Background.NAME)
                sent = self._shared.background.submit(gather, vector)
                wholes = {index: whole for index, whole in bucket.unpack(vector).items() if index in own}
                self._coming[number] = Coming(sent, wholes)
                own |= {index: whole.reshape(-1)[self._shards.parts[index]] for index, whole in wholes.items()}
            self._gathered.update(numbers)
            timeline.to(Part.OTHER)
            return [own[number] for number in numbers]

        views = self._shared.call(send, list(parts.values()), specs_of(list(parts.values())))
        for part, view in zip(parts.values(), views, strict=True):
            self._shared.backend.assign(part, view)

    def receive(self) -> None:
        """Assign the weights sent by the last step, as each bucket arrives. At the start of a step."""
        for number, bucket in enumerate(self._shards.buckets):
            indices = [slot.index for slot in bucket.slots]
            variables = [self._variables[index] for index in indices]
            take = functools.partial(self._take, number, indices)
            values = self._shared.call(take, variables, specs_of(variables))
            for variable, value in zip(variables, values, strict=True):
                self._shared.backend.assign(variable, value)

    def _take(self, bucket: int, indices: Sequence[int], *values: np.ndarray) -> list[np.ndarray]:
        """Return the new values of variables, given the current ones."""
        before = self._shared.timeline.to(Part.GATHER)
        wholes = self._wait(bucket)
        self._shared.timeline.to(before)
        if not wholes and self._gathered.issuperset(indices):
            return list(values)
        # A value that no step replaces is copied: otherwise each step would add a view of a view.
        return [
            wholes[index] if index in wholes else value.copy() for index, value in zip(indices, values, strict=True)
        ]

    def _wait(self, bucket: int) -> dict[int, np.ndarray]:
        if bucket not in self._coming:
            return {}
        sent, wholes = self._coming[bucket]
        sent.result()
        return wholes

    def settle(self) -> None:
        """Wait until the variables have the weights sent by the last step. Outside of a step; sends nothing.

        Raises:
            PeerError: If a worker has failed before sending its parts.
        """
        for bucket in sorted(self._coming):
            for number, whole in self._wait(bucket).items():
                self._shared.backend.assign(self._variables[number], whole)
        self.drop()

    def drop(self) -> None:
        """Forget the weights sent by the last step: the variables have them, or they will not arrive."""
        self._coming.clear()
