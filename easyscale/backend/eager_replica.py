"""The replica of a process whose framework computes a step's gradients before EasyScale is called."""

from collections.abc import Sequence

import keras

from easyscale.errors import DesyncError
from easyscale.layout.specs import Variable
from easyscale.step import equality
from easyscale.step.context import Model
from easyscale.step.one_replica import OneReplica

__all__ = ["EagerReplica"]


class EagerReplica(OneReplica):
    """The model of this process, one of many. There is no graph in which workers could communicate before a step."""

    def check_model(self, model: Model) -> None:
        """Raise `ValueError` if something else would average gradients as well."""
        if self.communicator.size > 1 and (distribution := keras.distribution.distribution()) is not None:
            raise ValueError(
                "a model that several processes train must not have a `keras.distribution`. Received: "
                f"{type(distribution).__name__}, {self.communicator.size} processes. Call "
                "`keras.distribution.set_distribution(None)`"
            )

    def start_in_step(self, variables: Sequence[Variable], state: Sequence[Variable]) -> None:
        """Set an optimizer's state to the chief's; raise `DesyncError` if the variables differ.

        It is too late to set these: the step's gradients have been computed. A graph would be traced before it computes
        any.
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
