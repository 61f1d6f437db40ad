"""The gather of a step's new weights, which goes on while the next step begins. No TensorFlow."""

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
    """A bucket of weights that is on its way.

    Attributes:
        sent: Future. It is done when the bucket has come.
        wholes: Dict. From the number of a variable to its value, which is whole then.
    """

    sent: "Future[None]"
    wholes: dict[int, np.ndarray]


class LateGather:
    """Lets weights come back in the order in which the next step's forward pass reads them.

        step s      ... reduce | update | send
        step s + 1                           receive 0 | receive 1 | ...       forward pass, reduce, ...
        thread                               gather 0, gather 1, ...

    A layer waits for the bucket that its weights are in, and for those before; while the others travel it computes.
    It costs as many messages and bytes as a gather behind the update, and a call of Python for each bucket more.
    Between `send` and `receive` the variables have the weights of the step before: whoever reads them outside of a step
    calls `settle` first. The messages have the same order as those of a worker that gathers behind its update.

    Args:
        shared: The `Shared` of the communicator.
        shards: The `Shards` of the variables.
        variables: The variables.

    References: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", 2019; Peng et
    al., "A generic communication scheduler for distributed DNN training acceleration", 2019.
    """

    def __init__(self, shared: Shared, shards: Shards, variables: Sequence[Variable]):
        self._shared, self._shards, self._variables = shared, shards, variables
        # By the bucket's number. They stay until the next are sent: a step that finds no more data may have received
        # them, and not assigned.
        self._coming: dict[int, Coming] = {}
        self._gathered: set[int] = set()  # the numbers of variables that a step has given new values

    def send(self, parts: Mapping[int, Variable]) -> None:
        """Begin to give all workers the parts of the variables, by number, that each has computed. At a step's end.

        The parts become views of what the variables will be, so that no weight is there twice.
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
        """Give the variables the weights that the last step has sent, as each bucket comes. At a step's begin."""
        for number, bucket in enumerate(self._shards.buckets):
            indices = [slot.index for slot in bucket.slots]
            variables = [self._variables[index] for index in indices]
            take = functools.partial(self._take, number, indices)
            values = self._shared.call(take, variables, specs_of(variables))
            for variable, value in zip(variables, values, strict=True):
                self._shared.backend.assign(variable, value)

    def _take(self, bucket: int, indices: Sequence[int], *values: np.ndarray) -> list[np.ndarray]:
        """Return what variables are from now on, given what they are."""
        before = self._shared.timeline.to(Part.GATHER)
        wholes = self._wait(bucket)
        self._shared.timeline.to(before)
        if not wholes and self._gathered.issuperset(indices):
            return list(values)
        # What no step replaces is copied: else it would be a view of a view of ..., one more in each step.
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
        """Return when the variables have what the last step has sent. Outside of a step; it sends nothing.

        Raises:
            PeerError: If a worker has failed before it had sent its parts.
        """
        for bucket in sorted(self._coming):
            for number, whole in self._wait(bucket).items():
                self._shared.backend.assign(self._variables[number], whole)
        self.drop()

    def drop(self) -> None:
        """Forget what the last step has sent: the variables have it, or it does not come."""
        self._coming.clear()
