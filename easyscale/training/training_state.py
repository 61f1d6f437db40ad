"""The single list of the state of a `fit()`: checkpoints, recovery and joining move parts of it."""

import keras

from easyscale import backend as backends
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.optimizer import DistributedOptimizer
from easyscale.training.callback_state import CallbackStates, TrustedCallbackStates
from easyscale.training.checkpointed import Parts
from easyscale.training.data_position import DataPosition
from easyscale.training.fit_progress import FitProgress
from easyscale.training.parts.decisions import Decisions
from easyscale.training.parts.layer_states import LayerStates
from easyscale.training.parts.metrics import MetricStates
from easyscale.training.parts.randomness import RandomState, Seeds
from easyscale.training.past_logs import PastLogs
from easyscale.training.residual_states import ResidualStates
from easyscale.training.state_parts import StateParts
from easyscale.training.stateful import Large, Stateful
from easyscale.training.variable_states import OptimizerStates, Weights

__all__ = ["TrainingState"]


class TrainingState(StateParts):
    """The parts of the state of a `fit()`, by name. Code that moves state names the parts that it needs.

    | name                | checkpoint | recovery | joining |
    | ------------------- | ---------- | -------- | ------- |
    | `weights`           | x          | x        | x       |
    | `optimizers`        | x          | x        | x       |
    | `residuals`         | x          |          |         |
    | `layers`            |            |          | x       |
    | `random`, `seeds`   | x          |          | x       |
    | `metrics`           | x          |          |         |
    | `data`              | x          |          |         |
    | `progress`          | x          |          | x       |
    | `decisions`         | x          |          | x       |
    | `callbacks`         | x          |          |         |
    | `trusted_callbacks` |            |          | x       |
    | `history`           |            |          | x       |

    Recovery and joining move weights and optimizers in place, as `variables`. Residuals are each worker's own.

    Args:
        model: The model.
        optimizers: List of its `DistributedOptimizer`s.
        progress: The `FitProgress`.
        decisions: The `Decisions`.
        data: The `DataPosition`.
        callbacks: The `CallbackStates`.

    Attributes:
        weights: The `Weights`.
        optimizers: The `OptimizerStates`.
        metrics: The `MetricStates`.
        seeds: The `Seeds`.
        past: The `PastLogs`.
        memory: `SnapshotMemory` for weights, optimizers and residuals.
    """

    parts: Parts | None = None  # the chief has the whole checkpoint

    def __init__(
        self,
        model: keras.Model,
        optimizers: list[DistributedOptimizer],
        progress: FitProgress,
        decisions: Decisions,
        data: DataPosition,
        callbacks: CallbackStates,
    ):
        replication, memory = optimizers[0].workers, SnapshotMemory()
        self.weights = Weights(model, replication.communicator, memory)
        self.optimizers = OptimizerStates(optimizers, memory)
        self.metrics, self.seeds = MetricStates(model, replication.communicator), Seeds(model, replication)
        self.past = PastLogs(model)
        others: dict[str, Stateful] = {
            "layers": LayerStates(model),
            "metrics": self.metrics,
            "random": RandomState(backends.get()),
            "seeds": self.seeds,
            "data": data,
            "progress": progress,
            "decisions": decisions,
            "callbacks": callbacks,
            "trusted_callbacks": TrustedCallbackStates(callbacks),
            "history": self.past,
        }
        large: dict[str, Large] = {
            "optimizers": self.optimizers,
            "weights": self.weights,
            "residuals": ResidualStates(optimizers, memory),
        }
        super().__init__(memory, large, others)

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables that are equal on all workers."""
        return self.weights.variables + self.optimizers.variables
