"""Checkpoints of a `fit()` by pipelines: like those of one process, made from the state of all stages."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.mesh import Mesh
from easyscale.optimizer import DistributedOptimizer
from easyscale.training.callback_state import CallbackStates
from easyscale.training.checkpointing import Checkpointing
from easyscale.training.console import Console
from easyscale.training.data_position import DataPosition
from easyscale.training.fit_progress import FitProgress
from easyscale.training.parts.data_pass import DataPass
from easyscale.training.pipelined.meeting import Meetings
from easyscale.training.pipelined.optimizer import StageOptimizer, build_whole
from easyscale.training.pipelined.own_stage import OwnStage
from easyscale.training.pipelined.own_state import OwnNames, OwnOptimizer, OwnWeights
from easyscale.training.pipelined.stage_copies import StageCopies
from easyscale.training.pipelined.staged_state import LargeState, StagedOptimizer, StagedState, StagedWeights
from easyscale.training.pipelined.steps import PipelineSteps
from easyscale.training.pipelined.whole_model import WholeModel
from easyscale.training.whole_batches import local_batch

__all__ = ["checkpointing_of"]


@dataclasses.dataclass(frozen=True)
class AllRanks:
    """The ranks of all pipelines.

    Attributes:
        communicator: Their `Communicator`.
        steps: The `Meetings`.
    """

    communicator: Communicator
    steps: Meetings


@dataclasses.dataclass(frozen=True)
class StagedModel:
    """A model of which each rank has one stage.

    Attributes:
        model: The model.
        workers: `AllRanks`.
        optimizers: List of the `DistributedOptimizer` of this rank's stage.
    """

    model: keras.Model
    workers: AllRanks
    optimizers: Sequence[DistributedOptimizer]

    def build(self) -> None:
        """Build the model's optimizer. Layers are built already: a model that is cut knows its inputs."""
        build_whole(self.model)


def checkpointing_of(
    model: keras.Model,
    mesh: Mesh,
    steps: PipelineSteps,
    whole: WholeModel | OwnStage,
    optimizer: StageOptimizer,
    meetings: Meetings,
    progress: FitProgress,
    data_pass: DataPass,
    callbacks: list[keras.callbacks.Callback],
    console: Console,
    options: Mapping[str, Any],
) -> Checkpointing:
    """Return the `Checkpointing` of a `fit()`.

    Args:
        model: The model.
        mesh: The `Mesh`.
        steps: The `PipelineSteps`.
        whole: The `WholeModel`, or the `OwnStage` if no rank has the whole model.
        optimizer: The `StageOptimizer`.
        meetings: The `Meetings`.
        progress: The `FitProgress`.
        data_pass: The `DataPass`.
        callbacks: List of this rank's callbacks.
        console: The `Console`.
        options: Dict. Arguments of `Checkpointing`.
    """
    data = DataPosition(local_batch(model, mesh.communicator), data_pass)
    memory = SnapshotMemory()
    copies: StageCopies | None = None
    weights: LargeState
    optimizers: LargeState
    if isinstance(whole, OwnStage):
        names = OwnNames(model, whole)
        copies = StageCopies(mesh, names.needed)
        weights = OwnWeights(names, mesh, memory, copies)
        optimizers = OwnOptimizer(names, mesh, model, optimizer, memory, copies)
    else:
        weights = StagedWeights(model, mesh, whole, memory)
        optimizers = StagedOptimizer(model, mesh, whole, optimizer, memory)
    callback_states = CallbackStates(callbacks)
    state = StagedState(model, steps.cut, mesh, weights, optimizers, memory, copies, progress, data, callback_states)
    steps.on_stage = state.metrics.settle
    staged = StagedModel(model, AllRanks(mesh.communicator, meetings), [optimizer.distributed])
    return Checkpointing(staged, progress, meetings, state, data, console, **options)
