"""Pipeline-parallel training of a model in `fit()`, and its collective operations around callbacks.

Every rank has the whole model, as the script builds it. In a `fit()` it trains the layers of its stage, and keeps no
memory for the weights of others. All stages are gathered at the end of `fit()`, at the end of each epoch if a callback
may read weights, and before an evaluation. They never are if the model was built in `scope()`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from easyscale import backend as backends
from easyscale import keras_internals
from easyscale.communicator import Communicator
from easyscale.mesh import Mesh
from easyscale.parallel.pipeline.deferred import is_deferred
from easyscale.parallel.pipeline.pipeline import Pipeline
from easyscale.progress import Activity
from easyscale.training.checkpointing import Checkpointing
from easyscale.training.console import Console
from easyscale.training.fit_progress import FitProgress
from easyscale.training.parts import losses, metrics
from easyscale.training.parts.data_pass import DataPass
from easyscale.training.pipelined import refusals
from easyscale.training.pipelined.averages import Averages
from easyscale.training.pipelined.checkpoints import checkpointing_of
from easyscale.training.pipelined.cutting import Cutting
from easyscale.training.pipelined.files import StagedFiles
from easyscale.training.pipelined.meeting import Kind, Meetings
from easyscale.training.pipelined.model_calls import ModelCalls
from easyscale.training.pipelined.model_files import ModelFiles
from easyscale.training.pipelined.optimizer import StageOptimizer
from easyscale.training.pipelined.own_stage import OwnStage
from easyscale.training.pipelined.split_stage import SplitStage
from easyscale.training.pipelined.staged_calls import StagedCalls, tell
from easyscale.training.pipelined.start import agree, agree_on_model, warn_of_own_state, what_steps_depend_on
from easyscale.training.pipelined.steps import PipelineSteps
from easyscale.training.pipelined.whole_model import WholeModel

__all__ = ["PipelineDistribution"]


class PipelineDistribution:
    """The training of one model by pipelines. Use `PipelineDistribution.of(model)`.

    Attributes:
        is_chief: Bool. Whether this rank is the one that writes: the first stage of the first pipeline.
    """

    def __init__(self, model: keras.Model):
        keras_internals.check()
        losses.install()
        self._model = model
        self._training = False
        self._backend = backends.get()
        self._steps: PipelineSteps | None = None
        self._made_for: list = []
        self._cutting = Cutting(model)
        self._whole: WholeModel | OwnStage
        self.hook: str | None = None  # see `callback_list.Together`
        self._files = ModelFiles(model, lambda: not self._training or self.is_chief)
        self._calls = ModelCalls(model, lambda: self._training, self.bring_together)
        self._checkpointing: Checkpointing | None = None
        replaced = {name: getattr(part, name) for part in (self._calls, self._files) for name in part.REPLACED}
        replaced[keras_internals.LOGS] = self._results
        for name, own in replaced.items():
            object.__setattr__(model, name, functools.partial(own, getattr(model, name)))

    @classmethod
    def of(cls, model: keras.Model) -> "PipelineDistribution":
        """Return the model's distribution; create it the first time."""
        if not cls.trains(model):
            object.__setattr__(model, "_easyscale_pipeline", cls(model))  # bypasses Keras, which would track it
        return model._easyscale_pipeline

    @staticmethod
    def trains(model: keras.Model) -> bool:
        """Return whether a model has a distribution: several stages train it."""
        return "_easyscale_pipeline" in vars(model)

    def prepare(
        self,
        pipeline: Pipeline,
        communicator: Communicator,
        options: Mapping[str, Any],
        check_every: int,
        checkpoint: Mapping[str, Any] | None,
    ) -> None:
        """Configure the training of the model. All ranks must call this, before the callbacks begin.

        Args:
            pipeline: The `Pipeline`.
            communicator: The `Communicator` of all ranks.
            options: Dict. Arguments of `DistributedOptimizer`, for the exchange between pipelines.
            check_every: Int. The number of steps between comparisons of the pipelines' weights.
            checkpoint: Dict. Arguments of `Checkpointing`; `None` for no checkpoints.
        """
        refusals.check_form(options, checkpoint is not None)
        self._pipeline, self._options, self._check_every = pipeline, dict(options), check_every
        self._checkpoint, ranks = checkpoint, pipeline.ranks_of_stage(communicator.size)
        self._mesh = _mesh(communicator, pipeline.stages, ranks)
        self._calls.prepare(self._mesh, options)

    @property
    def model(self) -> keras.Model:
        """The model."""
        return self._model

    @property
    def stages(self) -> Communicator:
        """The ranks of this pipeline, each with one stage."""
        return self._mesh["model"]

    @property
    def is_chief(self) -> bool:
        return self._mesh.communicator.is_chief

    @property
    def is_first(self) -> bool:
        """True if this rank is the first of its pipeline."""
        return all(self._mesh[axis].rank == 0 for axis in self._mesh.axes if axis != "data")

    @property
    def size(self) -> int:
        """The number of pipelines."""
        return self._mesh["data"].size

    @property
    def exchanges_in_graphs(self) -> bool:
        """True if ranks communicate inside of what Keras compiles into a graph: an evaluation, or a prediction."""
        return self.size > 1 or is_deferred(self._model)

    # A fit()

    def begin(self, params: dict, hooks: list[str], callbacks: list, act_as_chief: Callable[..., list] | None) -> None:
        """Start a `fit()`, after its callbacks: ranks are made equal, with one stage each."""
        model, world = self._model, self._mesh.communicator
        refusals.check(model, self._pipeline.microbatches)
        warn_of_own_state(model, self._pipeline.microbatches, self._mesh)
        self._files.answer()
        if is_deferred(model):
            refusals.check_deferred(model, callbacks, self._checkpoint is not None)
        written = {"checkpoint": (self._checkpoint or {}).get("written") is not None}
        plan = [params["epochs"], repr(self._pipeline), str(self._options), written]
        self._agreed = agree(model, self._mesh, plan, hooks, callbacks)
        key = [repr(self._pipeline), self._mesh, self._options, self._check_every, *what_steps_depend_on(model)]
        if not all(world.all_gather_object(self._made_for and self._made_for == [*key, self._whole.natives])):
            self._cut_model()
        self._whole.start_equal()
        lines = str(self._cut).splitlines()  # while all weights are here
        if not self._made_for:
            self._steps, self._made_for = self._make_steps(), [*key, self._whole.natives]
        else:
            self._optimizer.load(model)
            self._begun.restart()
        self._split.begin()
        self._optimizer.distributed.shard()
        self._averages.begin()
        console = Console(world, bool(params.get("verbose")))
        for line in [f"{self.size} x {self._pipeline}", *lines, *filter(None, [self._split.summary])]:
            console.say(line)
        self._training, model.train_function = True, self._train
        self._meetings, self._checkpointing = Meetings(model, world), None
        self._progress = FitProgress(self._optimizer.distributed.workers)
        self._progress.begin(params["epochs"])
        self._pass = DataPass(model, world)
        self._pass.begin()
        if self._checkpoint is not None:
            parts = self._begun, self._whole, self._optimizer, self._meetings, self._progress, self._pass
            self._checkpointing = checkpointing_of(model, self._mesh, *parts, callbacks, console, self._checkpoint)
            self._checkpointing.begin()

    @property
    def is_cut(self) -> bool:
        """True if each rank has only the weights of its stage."""
        return self._calls.staged is not None

    def cut_for(self, pipeline: Pipeline, communicator: Communicator, options: Mapping[str, Any]) -> None:
        """Cut a model that was built in a scope for a call before its first `fit()`. See `prepare`."""
        pipeline.check(communicator.size)
        self.prepare(pipeline, communicator, options, check_every=1, checkpoint=None)
        refusals.check(self._model, pipeline.microbatches)
        agree_on_model(self._model, self._mesh)
        self._cut_model()
        self._whole.start_equal()

    def _cut_model(self) -> None:
        model, mesh = self._model, self._mesh
        self._files.staged, self._calls.staged, self._made_for = None, None, []
        self._cut = self._cutting.cut(self._pipeline, mesh)
        if is_deferred(model):
            self._whole = own = OwnStage(model, self._cut, mesh)
            self._files.staged = files = StagedFiles(own, mesh)
            self._calls.staged = StagedCalls(model, self._cut, mesh, own, files)
        else:
            self._whole = WholeModel(model, self._cut, mesh)

    def bring_together(self) -> None:
        """Gather all weights on all ranks, and the optimizer's state in the chief's model. All ranks must call this."""
        self._split.show()
        self._whole.bring_together(self._optimizer)

    def _make_steps(self) -> PipelineSteps:
        model, mesh, pipeline, cut = self._model, self._mesh, self._pipeline, self._cut
        own = cut.stages[mesh["model"].rank].trainable_variables
        workers = mesh.workers() if "split" in mesh.axes else mesh["data"]
        self._optimizer = StageOptimizer(model, own, workers, self._options)
        self._split = split = SplitStage(model, cut, pipeline, mesh, self._optimizer.distributed)
        steps = PipelineSteps(model, pipeline, mesh, cut, self._optimizer, self._backend, self._check_every, split)
        self._averages = Averages(model, self._optimizer, self._whole, own, steps.share_tied)
        return steps

    def begin_epoch(self, epoch: int) -> None:
        """Start epoch number `epoch`, from 0."""
        self._progress.move_to(epoch)
        if self._checkpointing is not None:
            self._checkpointing.begin_epoch()
        self._optimizer.distributed.workers.steps.begin(2 * epoch + 2, together=False)

    def end_epoch(self) -> None:
        """Do nothing at the end of an epoch. Called after the epoch's callbacks."""

    def _train(self, iterator: Iterator) -> dict[str, Any]:
        """Make a step, in place of Keras's train function."""
        with self._optimizer.distributed.workers.steps.explained(on_failure=self.stop):
            return self._step(iterator)

    def _step(self, iterator: Iterator) -> dict[str, Any]:
        steps, told, checkpointing = self._begun, self._mesh.communicator.progress, self._checkpointing
        if checkpointing is not None:
            iterator, skipped = checkpointing.skip(iterator)
            if skipped:
                return {}
            checkpointing.before_step(self._progress.steps)
        self._pass.check(1)
        met = self._meetings.meet(Kind.STEP, (batch := steps.read(iterator))[2])
        if self._progress.steps == 0 and (refusal := steps.refusal_of_first(met.samples)) is not None:
            raise ValueError(refusal)
        told.step, told.activity = steps.count, Activity.STEPS if steps.count else Activity.FIRST_STEP
        logs = steps.step(batch, met.samples, on_begin=self._release)
        told.activity = Activity.STEPS
        self.end_step()
        if checkpointing is not None:
            checkpointing.count_step()
        return logs

    def _release(self) -> None:
        self._averages.release()
        self._split.hide()

    def end_step(self) -> None:
        """Count a step, also one of other pipelines only."""
        self._progress.count(1)
        if self._agreed.looks_in_steps:
            self.bring_together()

    @property
    def _begun(self) -> PipelineSteps:
        assert self._steps is not None  # Keras makes steps after `begin`
        return self._steps

    def skips(self) -> bool:
        """Return whether the step that begins was made before the checkpoint from which training resumes."""
        return self._checkpointing is not None and self._checkpointing.skips

    def has_ended(self, evaluates: bool) -> bool:
        """Return `False`: a step that finds no more data raises an exception."""
        return False

    def settle(self, hook: str) -> None:
        """Do nothing: if a callback may read weights, they are gathered after each step."""

    def decide(self, hook: str | None = None) -> None:
        """Apply decisions of any rank's callbacks to all ranks; after a step's hook only if there may be some."""
        if hook is None or hook in self._agreed.hooks:
            self._files.answer()
            self._meetings.meet(Kind.DECISION)

    def _results(self, original: Callable, logs: dict) -> dict:
        """Return the logs of all ranks' data, when this rank's data has ended."""
        if self._calls.are_evaluating or not self._training:
            return self._calls.results(original, logs)
        if self._checkpointing is not None:
            self._checkpointing.end_data()
        while (met := self._meetings.meet(Kind.END)).kind is not Kind.END:
            if met.kind is Kind.STEP:
                self._release()
                self._begun.idle_step()
                self.end_step()
            elif met.kind is Kind.CHECKPOINT:
                self._meetings.join_checkpoint(self._progress.steps)
        self._pass.end_epoch(all(self._mesh.communicator.all_gather_object(self._pass.has_ended)))
        if self._agreed.looks:
            self.bring_together()
        merged, along = dict[str, Any](), self._mesh["model"]
        if along.rank == along.size - 1:
            merged = metrics.merge_logs(self._model, self._mesh["data"], self._model.get_metrics_result())
        return tell(along, merged)

    def end(self) -> None:
        """End a `fit()`, after its callbacks: return the state to the model's optimizer."""
        self._files.answer()
        self._begun.compare()
        self._split.end(complete=True)
        self._optimizer.distributed.unshard(complete=True)
        self._whole.keep(self._optimizer)
        if self._checkpointing is not None:
            self._checkpointing.end(lambda save: save())
        self.stop()

    def fail(self, hook: str) -> None:
        """Leave a `fit()` in which a callback raised an exception, here or on all ranks: the chief may be writing."""
        if self._training and hook in ("on_epoch_begin", "on_epoch_end", "on_train_end", *self._agreed.hooks):
            with contextlib.suppress(Exception):  # the callback's exception is the one to report
                self._files.answer()
        self.stop()

    def stop(self) -> None:
        """Leave a `fit()`; if it has not ended, without the other ranks."""
        self._calls.end()
        if self._training:
            self._training = False
            self._pass.release()
            self._averages.end()
            self._split.end(complete=False)
            self._whole.abandon(self._optimizer)
            self._optimizer.distributed.unshard(complete=False)
            keras_internals.set_initial_epoch(self._model, None)
            if self._checkpointing is not None:
                self._checkpointing.stop()
            self._model.train_function = None

    # Evaluations

    def begin_evaluation(self) -> None:
        """Start an `evaluate()` of all ranks: each evaluates the whole model on the data of its pipeline."""
        self._calls.begin()
        self._mesh.communicator.progress.activity = Activity.EVALUATION

    def end_evaluation(self) -> None:
        """End an `evaluate()` of all ranks."""
        self._calls.end()
        self._mesh.communicator.progress.activity = Activity.STEPS


@functools.cache
def _mesh(communicator: Communicator, stages: int, ranks: int) -> Mesh:
    """Return the mesh of pipelines of `stages` stages, each on `ranks` ranks: the same object for all models."""
    within = {"split": ranks} if ranks > 1 else {}
    return Mesh(communicator, {"data": communicator.size // (stages * ranks), "model": stages, **within})
