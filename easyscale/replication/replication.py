"""All workers of one optimizer, as seen from one of them: an object for each purpose."""

import dataclasses
from collections.abc import Sequence

from easyscale import backend as backends
from easyscale.communicator import Communicator
from easyscale.layout.specs import Variable
from easyscale.step import equality
from easyscale.step.context import CurrentStep
from easyscale.step.gradients import Gradients
from easyscale.step.one_replica import OneReplica
from easyscale.step.steps import Steps
from easyscale.step.whole_batch import WholeBatch

__all__ = ["Replication"]


@dataclasses.dataclass(frozen=True, eq=False)
class Replication:
    """The workers of one optimizer, as seen from one of them.

    The classes of its attributes document their public interface.

    Attributes:
        communicator: The `Communicator` between processes.
        gradients: The `Gradients`, for updates.
        batch: The `WholeBatch`, for layers, losses and metrics.
        steps: The `Steps`, for `fit()`.
        replicas: The `OneReplica`: the model's copies in this process, such as `BetweenGraph` or `InGraph`.
        current_step: The `CurrentStep`.
    """

    communicator: Communicator
    gradients: Gradients
    batch: WholeBatch
    steps: Steps
    replicas: OneReplica
    current_step: CurrentStep

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.batch.size

    def check_equal(self, variables: Sequence[Variable], step: int) -> None:
        """Raise `DesyncError` if weights differ between workers. All workers must call this.

        Slices over a group's ranks are compared between the ranks with the same slice.

        Args:
            variables: The variables.
            step: Int. The step after which they are compared, for the error.
        """
        divided, groups = self.gradients.slices, self.gradients.groups
        wholes = [variable for variable in variables if variable not in divided and variable not in groups]
        self.replicas.check_equal(wholes, step)
        slices = [variable for variable in variables if variable in groups]
        if slices:
            equality.check_equal(self.communicator, backends.get(), slices, step)
