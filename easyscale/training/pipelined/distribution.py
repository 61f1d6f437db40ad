"""What a model that pipelines train does differently in `fit()`, and what its callbacks do together.

Every rank has the whole model, as the script builds it. In a `fit()` it trains the layers of its stage, and has of the
other weights what they were when all stages last came together: at the end of `fit()`, of each epoch if a callback may
look at them, and before an evaluation.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from easyscale import backend as backends
from easyscale import keras_internals
from easyscale.communicator import Communicator
from easyscale.errors import DesyncError
from easyscale.mesh import Mesh
from easyscale.parallel.pipeline.cut import cut_model
from easyscale.parallel.pipeline.pipeline import Pipeline
from easyscale.progress import Activity
from easyscale.step import equality
from easyscale.training.callback_list import deciding_hooks
from easyscale.training.console import Console
from easyscale.training.parts import losses, metrics
from easyscale.training.parts.randomness import mix
from easyscale.training.pipelined import refusals
from easyscale.training.pipelined.loss import numbers_of
from easyscale.training.pipelined.meeting import Kind, Met, meet
from easyscale.training.pipelined.optimizer import StageOptimizer, build_whole
from easyscale.training.pipelined.steps import PipelineSteps
from easyscale.training.pipelined.whole_model import WholeModel
from easyscale.update.accumulated import unscaled

__all__ = ["PipelineDistribution"]

_REPLACED = ("evaluate", "save", "save_weights", "export")

# These look at no weights.
_BLIND = (
    "CSVLogger",
    "History",
    "LearningRateScheduler",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "TerminateOnNaN",
)


class PipelineDistribution:
    """The training of one model by pipelines. Use `PipelineDistribution.of(model)`.

    Attributes:
        is_chief: Bool. Whether this rank is the one that writes: the first stage of the first pipeline.
    """

    def __init__(self, model: keras.Model):
        keras_internals.check()
        losses.install()
        self._model = model
        self._training = self._evaluating = self._is_whole = False
        self._backend = backends.get()
        self._steps: PipelineSteps | None = None
        self._made_for: list = []
        for name in (*_REPLACED, keras_internals.LOGS):
            own = self._results if name == keras_internals.LOGS else getattr(self, name)
            object.__setattr__(model, name, functools.partial(own, getattr(model, name)))

    @classmethod
    def of(cls, model: keras.Model) -> "PipelineDistribution":
        """Return the model's distribution; make it the first time."""
        if "_easyscale_pipeline" not in vars(model):
            object.__setattr__(model, "_easyscale_pipeline", cls(model))  # past Keras, which would track it
        return model._easyscale_pipeline

    def prepare(
        self, pipeline: Pipeline, communicator: Communicator, options: Mapping[str, Any], check_every: int
    ) -> None:
        """Take in how the model is trained. All ranks call this together, before the callbacks begin.

        Args:
            pipeline: The `Pipeline`.
            communicator: The `Communicator` of all ranks.
            options: Dict. Arguments of `DistributedOptimizer`, for what is between pipelines.
            check_every: Int. After so many steps the weights of the pipelines are compared.
        """
        self._pipeline, self._options, self._check_every = pipeline, dict(options), check_every
        self._mesh = _mesh(communicator, pipeline.stages)

    @property
    def is_chief(self) -> bool:
        return self._mesh.communicator.is_chief

    # A fit()

    def begin(self, params: dict, hooks: list[str], callbacks: list, act_as_chief: Callable[..., list] | None) -> None:
        """Start a `fit()`, after its callbacks have: equal ranks, a stage on each."""
        model, world = self._model, self._mesh.communicator
        refusals.check(model)
        self._agree(params["epochs"], hooks, callbacks)
        self._start_equal()
        key = self._way_to_train()
        if self._steps is None or self._made_for != key:
            self._steps, self._made_for = self._make_steps(), key
        else:
            self._optimizer.load(model)
            self._steps.restart()
        self._optimizer.distributed.shard()
        console = Console(world, bool(params.get("verbose")))
        console.say(f"{world.size // self._pipeline.stages} x {self._pipeline}")
        for line in str(self._steps.cut).splitlines():
            console.say(line)
        self._training, self._is_whole = True, True
        model.train_function = self._train

    def _way_to_train(self) -> list:
        """What stages depend on: while it is the same, what was traced in a `fit()` stays for the next."""
        model = self._model
        weights = [(id(variable), variable.trainable) for variable in model.variables]
        optimizer = unscaled(model.optimizer)
        rate = keras_internals.learning_rate_of(optimizer)
        config = {name: value for name, value in optimizer.get_config().items() if name != "learning_rate"}
        loss = id(model.metrics[0])  # which `compile` makes anew
        compiled = [id(model.optimizer), id(rate), config, loss]
        return [repr(self._pipeline), self._mesh, self._options, self._check_every, weights, compiled]

    def _make_steps(self) -> PipelineSteps:
        model, mesh, pipeline = self._model, self._mesh, self._pipeline
        cut = cut_model(model, pipeline.stages, pipeline.cut)
        part = cut.stages[mesh["model"].rank]
        self._optimizer = StageOptimizer(model, part.trainable_variables, mesh["data"], self._options)
        if not self._optimizer.distributed.is_synchronous:
            raise ValueError(
                "an exchange between pipelines must wait for all of them. Received: "
                f"exchange='{self._optimizer.distributed.workers.gradients.exchange.name}'. Use 'ring'"
            )
        self._whole = WholeModel(model, cut.stages, mesh["model"], self._optimizer)
        return PipelineSteps(model, pipeline, mesh, cut, self._optimizer, self._backend, self._check_every)

    def _agree(self, epochs: int, hooks: list[str], callbacks: list) -> None:
        """Agree on what the ranks do, and whether weights must be whole for the callbacks of any of them."""
        model, looking = self._model, [one for one in callbacks if _looks_at_weights(one)]
        plan = [epochs, repr(self._pipeline), str(self._options), keras_internals.initial_epoch(model)]
        looks = [bool(looking), bool(deciding_hooks(looking))]
        told = self._mesh.communicator.all_gather_object([plan, hooks, looks, model.optimizer.built])
        plans, all_hooks, all_look, built = zip(*told, strict=True)
        different = [rank for rank, other in enumerate(plans) if other[:3] != plans[0][:3]]
        if different:
            raise DesyncError(
                "all ranks must train for the same epochs, by the same pipeline. Received: "
                f"{plans[0][:3]} on rank 0, {plans[different[0]][:3]} on rank {different[0]}. Run one script on all"
            )
        keras_internals.set_initial_epoch(model, plans[0][3])  # which BackupAndRestore may have set, on the chief
        self._hooks = {hook for theirs in all_hooks for hook in theirs}
        self._must_be_whole, self._must_be_whole_in_steps = map(any, zip(*all_look, strict=True))
        if any(built):
            build_whole(model)

    def _start_equal(self) -> None:
        model, backend = self._model, self._backend
        equality.start_equal(self._mesh.communicator, backend, [*model.variables, *model.optimizer.variables])
        if (number := self._mesh["data"].rank) > 0:  # dropout differs between pipelines
            for variable in model.variables:
                if variable.name == "seed_generator_state":
                    seed, count = backends.value_of(variable).tolist()
                    variable.assign([mix(seed, number), count])

    def begin_epoch(self, epoch: int) -> None:
        """Start the epoch number `epoch`, from 0."""
        self._optimizer.distributed.workers.steps.begin(2 * epoch + 2, together=False)

    def end_epoch(self) -> None:
        """Take in that an epoch is over, also for its callbacks."""

    def _train(self, iterator: Iterator) -> dict[str, Any]:
        """Make a step, in place of Keras's train function."""
        steps, told = self._begun, self._mesh.communicator.progress
        batch = steps.read(iterator)
        met = self._meet(Kind.STEP, batch[2])
        told.step, told.activity = steps.count, Activity.STEPS if steps.count else Activity.FIRST_STEP
        with self._optimizer.distributed.workers.steps.explained(on_failure=self.stop):
            self._is_whole = False
            logs = steps.step(batch, met.samples)
        told.activity = Activity.STEPS
        if self._must_be_whole_in_steps:
            self._make_whole()
        return logs

    @property
    def _begun(self) -> PipelineSteps:
        assert self._steps is not None  # Keras makes steps behind `begin`
        return self._steps

    def _meet(self, kind: Kind, samples: int = 0) -> Met:
        rate = keras_internals.learning_rate_of(unscaled(self._model.optimizer))
        number = float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else float("nan")
        met = meet(self._mesh.communicator, kind, samples, bool(self._model.stop_training), number)
        if met.kind is Kind.DECISION:
            self._model.stop_training = met.stops
            if met.learning_rate != number and isinstance(rate, keras.Variable):
                self._model.optimizer.learning_rate = met.learning_rate
        return met

    def settle(self, hook: str) -> None:
        """Take in that a callback may look at the weights: then they are whole behind each step."""

    def decide(self, hook: str | None = None) -> None:
        """Let what callbacks of any rank have decided hold on all; after a step's hook only if some may have."""
        if hook is None or hook in self._hooks:
            self._meet(Kind.DECISION)

    def _results(self, original: Callable, logs: dict) -> dict:
        """Return the logs of all ranks' data, when this rank's have come to an end."""
        if self._evaluating:
            return metrics.merge_logs(self._model, self._mesh["data"], logs)
        if not self._training:
            return original(logs)
        while (met := self._meet(Kind.END)).kind is not Kind.END:
            if met.kind is Kind.STEP:
                self._is_whole = False
                self._begun.idle_step()
                if self._must_be_whole_in_steps:
                    self._make_whole()
        if self._must_be_whole:
            self._make_whole()
        merged: dict[str, Any] = {}
        along = self._mesh["model"]
        if along.rank == along.size - 1:
            merged = metrics.merge_logs(self._model, self._mesh["data"], self._model.get_metrics_result())
        told = along.all_gather_object({name: value.tolist() for name, value in numbers_of(merged).items()})
        return told[-1]

    def _make_whole(self) -> None:
        """Give all ranks all weights, and the chief's model the optimizer's state. All ranks must call this."""
        if not self._is_whole:
            self._whole.gather_weights()
            self._whole.gather_state(complete=False, is_needed=self._mesh["data"].rank == 0)
            self._is_whole = True

    def end(self) -> None:
        """End a `fit()`, after its callbacks have: the whole model and its optimizer are on every rank."""
        self._begun.compare()
        if not self._is_whole:
            self._whole.gather_weights()
        self._optimizer.distributed.unshard(complete=True)
        self._whole.gather_state(complete=True, is_needed=True)
        self._is_whole = True
        self.stop()

    def fail(self, hook: str) -> None:
        """Leave a `fit()` in which a callback has raised an exception."""
        self.stop()

    def stop(self) -> None:
        """Leave a `fit()`; if it was not ended, without the other ranks."""
        if self._training:
            self._training = False
            self._optimizer.distributed.unshard(complete=False)
            keras_internals.set_initial_epoch(self._model, None)
            self._model.train_function = None

    # Evaluations, and files

    def begin_evaluation(self) -> None:
        """Start an `evaluate()` of all ranks: each evaluates the whole model on the data of its pipeline."""
        self._evaluating = True
        self._mesh.communicator.progress.activity = Activity.EVALUATION

    def end_evaluation(self) -> None:
        """End an `evaluate()` of all ranks."""
        self._evaluating = False
        self._mesh.communicator.progress.activity = Activity.STEPS

    def evaluate(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        if self._training and keras_internals.OF_FIT in kwargs:  # all ranks validate
            self._make_whole()
        return original(*args, **kwargs)

    def save(self, original: Callable, *args: Any, **kwargs: Any) -> None:
        # In fit() all ranks come here, in callbacks of the user's own; the file is written once.
        if not self._training or self.is_chief:
            original(*args, **kwargs)

    save_weights = export = save


@functools.cache
def _mesh(communicator: Communicator, stages: int) -> Mesh:
    """Return the mesh of pipelines of so many stages, the same for all models."""
    return Mesh(communicator, {"data": communicator.size // stages, "model": stages})


def _looks_at_weights(callback: keras.callbacks.Callback) -> bool:
    if type(callback).__module__.startswith("easyscale.") or type(callback).__name__ in _BLIND:
        return False
    return bool(getattr(callback, "restore_best_weights", True))
