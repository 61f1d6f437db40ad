"""The replica of a process whose framework makes a step's gradients before EasyScale sees any of it."""

from collections.abc import Sequence

import keras

from easyscale.errors import DesyncError
from easyscale.layout.specs import Variable
from easyscale.step import equality
from easyscale.step.context import Model
from easyscale.step.one_replica import OneReplica

__all__ = ["EagerReplica"]


class EagerReplica(OneReplica):
    """The model of this process, which is one of many. There is no graph in which workers could meet before."""

    def check_model(self, model: Model) -> None:
        """Raise `ValueError` if somebody else would average gradients as well."""
        if self.communicator.size > 1 and (distribution := keras.distribution.distribution()) is not None:
            raise ValueError(
                "a model that several processes train must not have a `keras.distribution`. Received: "
                f"{type(distribution).__name__}, {self.communicator.size} processes. Call "
                "`keras.distribution.set_distribution(None)`"
            )

    def start_in_step(self, variables: Sequence[Variable], state: Sequence[Variable]) -> None:
        """Let an optimizer's state be the chief's, and raise `DesyncError` unless the variables are: it is too late.

        The step's gradients have been made already. A graph would be traced before it computes any.
        """
        if self.communicator.size > 1:
            rows = self.communicator.all_gather_rows(equality.fingerprint(self._backend, variables))
            if other := [rank for rank, row in enumerate(rows) if (row != rows[0]).any()]:
                raise DesyncError(
                    f"all ranks must begin a training loop of your own with the same weights on {self._backend.name}, "
                    "where a step's gradients come before EasyScale. Received: other weights than rank 0's on rank "
                    f"{other[0]}. Call `keras.utils.set_random_seed(1)` before the model is built, or `fit()` with "
                    "`Distribute`"
                )
        self.start_equal(state)
