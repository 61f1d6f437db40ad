"""All workers of one optimizer, as one of them sees them: an object for each thing that is asked of them."""

import dataclasses

from easyscale.communicator import Communicator
from easyscale.step.current_step import CurrentStep
from easyscale.step.gradients import Gradients
from easyscale.step.interfaces import WholeBatch
from easyscale.step.one_replica import OneReplica
from easyscale.step.step_protocol import Steps

__all__ = ["Replication"]


@dataclasses.dataclass(frozen=True, eq=False)
class Replication:
    """The workers of one optimizer, seen from one of them.

    What is public of its parts is documented in `interfaces.py`.

    Attributes:
        communicator: The `Communicator` between processes.
        gradients: The `GradientSync`: what an update needs.
        batch: The `WholeBatch`: what layers, losses and metrics need.
        steps: The `StepProtocol`: what a `fit()` needs.
        replicas: The `ModelScope`: the model's copies in this process, such as `BetweenGraph` or `InGraph`.
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
