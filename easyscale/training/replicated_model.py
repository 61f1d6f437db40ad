"""A model and its optimizers, replicated on each worker."""

from collections.abc import Iterator, Sequence

import keras

from easyscale import backend as backends
from easyscale.backend import dataset_of
from easyscale.keras_internals import layers_of, trained_by
from easyscale.optimizer import DistributedOptimizer
from easyscale.step.agreement import Purpose
from easyscale.training.console import Console
from easyscale.training.keras_fit import locals_of_fit
from easyscale.training.meetings import Meetings
from easyscale.training.parts import batch_normalization
from easyscale.training.split.split_model import SplitModel
from easyscale.training.training_state import TrainingState
from easyscale.training.whole_batches import samples_of_step

__all__ = ["ReplicatedModel"]


class ReplicatedModel:
    """Builds the replicas, makes them equal, shards optimizers' state over workers, and compares weights.

    Args:
        model: The model.
        optimizers: List of its `DistributedOptimizer`s.
        state: The `TrainingState`.
        meetings: The `Meetings`.
        console: The `Console` on which to report which exchange has been chosen, and why.
        split: The `SplitModel`, if layers are split. Defaults to `None`.

    Attributes:
        model: The model.
        optimizers: List of its `DistributedOptimizer`s.
        workers: The replication's view of all workers.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizers: list[DistributedOptimizer],
        state: TrainingState,
        meetings: Meetings,
        console: Console,
        split: SplitModel | None = None,
    ):
        self.model, self.optimizers, self.workers = model, optimizers, optimizers[0].workers
        self._state, self._meetings, self._console, self._split = state, meetings, console, split
        self._traced = False
        self._said: list = []
        if split is not None:
            meetings.register(Purpose.ACTIVATIONS, split.join)

    @property
    def is_built(self) -> bool:
        """True if the model and its optimizers have all of their variables."""
        complete = self.model.built and all(layer.built for layer in layers_of(self.model, recursive=False))
        return complete and all(optimizer.built for optimizer in self.optimizers)

    @property
    def is_sharded(self) -> bool:
        """True if each worker has only its part of some optimizer's state now."""
        return any(optimizer.is_sharded for optimizer in self.optimizers)

    @property
    def is_elastic(self) -> bool:
        """True if the workers of an elastic job can go on from here when one has failed."""
        return self.is_built and all(optimizer.is_elastic for optimizer in self.optimizers)

    def take_choices(self, choices: Sequence) -> None:
        """Use the exchanges and bucket sizes that other workers have chosen before, one choice for each optimizer."""
        for optimizer, choice in zip(self.optimizers, choices, strict=False):
            if choice is not None:
                optimizer.workers.gradients.config.take(*choice)

    def begin(self) -> None:
        """Make all workers' replicas equal, as far as they are built. All workers must call this."""
        optimizer = getattr(self.model, "optimizer", None)
        if self.model.built and optimizer is not None and not optimizer.built and self.model.trainable_variables:
            inner = optimizer.inner_optimizer if isinstance(optimizer, DistributedOptimizer) else optimizer
            # A script may have built it for some of the weights, in a step of its own.
            optimizer.build(trained_by(inner) if inner.built else self.model.trainable_variables)
        self._start_equal()
        self.shard()

    def _start_equal(self) -> None:
        self.workers.replicas.start_equal(self._state.variables)
        self._state.seeds.differ()
        batch_normalization.synchronize(self.model)

    def build(self, iterator: Iterator | None = None, traces: bool = False) -> None:
        """Build what the first step would otherwise build: its variables must be equal before.

        Args:
            iterator: Iterator over the batches of the first step. Defaults to `None`: those of this `fit()`.
            traces: Bool. Whether to trace a step even if all is built, so that there are metrics. Defaults to `False`.
        """
        was_built = self.is_built
        if was_built and (not traces or self._traced):
            return
        if iterator is None:
            data = dataset_of(locals_of_fit(self.model).get("epoch_iterator"))
            if data is None:
                return
            iterator = iter(data)
        self._meetings.reach(Purpose.BUILD)  # a worker without data does not get here, and raises an error
        self._traced = True
        self.rehearse(iterator)
        self._start_equal()
        self.shard()
        if traces and not was_built and self.is_sharded:
            self.rehearse(iterator)  # a worker that has no data left must know this step, too

    def rehearse(self, iterator: Iterator) -> None:
        """Trace a step without making it."""
        variables = [*self.model.variables, *self.model.metrics_variables, *self._state.optimizers.variables]
        self.workers.replicas.rehearse(self.model.train_step, iterator, variables)

    def shard(self) -> None:
        """Start the update of this `fit()`: shard optimizers' state if it is to be divided.

        Before, split the layers that are to be split.
        """
        if self._split is not None and self.is_built:
            self._split.begin()
            self._console.say_once(self._split.summary)
        for optimizer in self.optimizers:
            if not optimizer.is_sharded:
                self._shard(optimizer)
            config = optimizer.workers.gradients.config
            for line in config.reasons if self._console.is_verbose else ():
                if (config, line) not in self._said:
                    self._said.append((config, line))
                    self._console.say(line)
        if self.is_built and self._console.is_verbose:
            self._console.say_once(self._describe())

    def _describe(self) -> str:
        """Return how this `fit()` is distributed, in one line."""
        optimizer, communicator = self.optimizers[0], self.workers.communicator
        config, update = optimizer.workers.gradients.config, optimizer.updates.now.name
        samples = samples_of_step(self.model, communicator)
        parts = [samples, f"exchange {config.exchange.name}"]
        parts += [f"compression {config.sums.form.name}"] if config.sums is not None else []
        parts += [f"update {update}"] if update else []
        return ", ".join([*parts, backends.get().describe()])

    def _shard(self, optimizer: DistributedOptimizer) -> None:
        try:
            optimizer.shard()
        except ValueError:  # no worker can shard it
            if self._split is not None:
                self._split.end(complete=True)
            raise

    def unshard(self, complete: bool) -> None:
        """End the update: make layers and optimizers' state whole. See `DistributedOptimizer.unshard`."""
        if self._split is not None:
            self._split.end(complete)
        for optimizer in self.optimizers:
            optimizer.unshard(complete)

    def agree_on_random_state(self) -> None:
        """After a `fit()`, let scripts draw the same numbers on all workers again. All workers must call this."""
        self._state.seeds.agree_on_random_state()

    def compare(self, steps: int) -> None:
        """Raise `DesyncError` if workers' weights differ, after `steps` steps. All workers must call this."""
        self.workers.check_equal(self.model.trainable_variables, steps)
