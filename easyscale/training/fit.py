"""One `fit()` of all workers: they start equal, step together, compare weights, decide, and end together."""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from easyscale import backend as backends
from easyscale.communicator.data_axis import everyone_of
from easyscale.data import division, fingerprints, tf_dataset
from easyscale.errors import DesyncError, EasyScaleWarning
from easyscale.keras_internals import initial_epoch, set_initial_epoch
from easyscale.optimizer import DistributedOptimizer
from easyscale.step.agreement import Purpose
from easyscale.training.callback_state import CallbackStates
from easyscale.training.checkpointing import Checkpointing
from easyscale.training.console import Console
from easyscale.training.data_position import DataPosition
from easyscale.training.elastic.regrouping import Regrouping
from easyscale.training.fit_progress import FitProgress
from easyscale.training.keras_fit import locals_of_fit
from easyscale.training.meetings import Meetings
from easyscale.training.parts import batch_normalization, metrics
from easyscale.training.parts.data_pass import DataPass
from easyscale.training.parts.decisions import Decisions
from easyscale.training.parts.divided_data import DividedData
from easyscale.training.parts.layer_states import start_with_equal_layers
from easyscale.training.parts.own_state import OwnState
from easyscale.training.profile import Profile, warn_of_none
from easyscale.training.replicated_model import ReplicatedModel
from easyscale.training.rounds import Rounds
from easyscale.training.same_model import check_same_layers, layer_facts
from easyscale.training.served_steps import ServedSteps
from easyscale.training.split.split_model import SplitModel
from easyscale.training.synchronous_steps import SynchronousSteps
from easyscale.training.train_function import TrainFunction
from easyscale.training.training_state import TrainingState
from easyscale.training.whole_batches import local_batch

__all__ = ["Fit"]


class Fit:
    """The collective operations of one `fit()`, except the exchange of gradients.

    Args:
        model: The model.
        optimizers: List of its `DistributedOptimizer`s.
        check_every: Int. The number of steps between comparisons of the workers' weights.
        verbose: Bool. Whether the chief prints which exchange has been chosen, and why. Defaults to `False`.
        callbacks: List of the callbacks. Defaults to `None`: none.
        checkpoint: Dict. Arguments of `Checkpointing`. Defaults to `None`: no checkpoints.
        trace_anew: Function. Forces a retrace of the next step, for other workers. Defaults to `None`, if no steps are
            made.
        take_over: Function. See `Regrouping`. Defaults to `None`, if no steps are made.
        split: The `SplitModel`, if layers are split. Defaults to `None`.

    Attributes:
        progress: The `FitProgress`.
        data: The `DividedData`.
        rounds: The `Rounds`.
        passes: Bool. Whether this `fit()`, of a replacement process, is over for the other workers.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizers: list[DistributedOptimizer],
        check_every: int,
        verbose: bool = False,
        callbacks: list[keras.callbacks.Callback] | None = None,
        checkpoint: dict[str, Any] | None = None,
        trace_anew: Callable[[], None] | None = None,
        take_over: Callable[[dict[str, list], int, int | None], list | None] | None = None,
        split: SplitModel | None = None,
    ):
        replication = optimizers[0].workers
        self._model, self._communicator = model, replication.communicator
        self.passes, self._trace_anew = False, trace_anew
        self._small_batches: list[division.SmallBatches] = []  # of the training data
        self._train_function: TrainFunction | None = None  # since its first step
        self.data, self._pass = DividedData(model, self._communicator), DataPass(model, self._communicator)
        self.progress, console = FitProgress(replication), Console(self._communicator, verbose)
        self._meetings, self._profile = Meetings(optimizers, self.progress), Profile(self._communicator)
        self._own_state = OwnState(model, self._communicator)
        self._decisions = Decisions(model, optimizers, self._meetings)
        callback_states = CallbackStates(callbacks or [])
        position = DataPosition(local_batch(model, self._communicator), self._pass)
        state = TrainingState(model, optimizers, self.progress, self._decisions, position, callback_states)
        self._replicated = ReplicatedModel(model, optimizers, state, self._meetings, console, split)
        self.rounds = Rounds(model, optimizers, self.progress, self._meetings, self._replicated.compare, trace_anew)
        self._checkpointing: Checkpointing | None = None
        if checkpoint is not None:
            self._checkpointing = Checkpointing(
                self._replicated, self.progress, self._meetings, state, position, console, **checkpoint
            )
        self._regrouping: Regrouping | None = None
        is_elastic = self._communicator.membership.is_elastic and not self._communicator.servers
        if is_elastic and trace_anew is not None and take_over is not None:
            self._regrouping = Regrouping(
                self._replicated,
                state,
                self.progress,
                self._meetings,
                self.data,
                callback_states,
                self._checkpointing,
                console,
                trace_anew,
                take_over,
            )
        self._served: ServedSteps | None = None
        if not optimizers[0].is_synchronous:
            self._served = ServedSteps(self._replicated, self.progress, self._checkpointing, console)
        self._steps = self._served or SynchronousSteps(
            self._replicated,
            self.progress,
            self._meetings,
            self.data,
            self._pass,
            self._checkpointing,
            self._regrouping,
            self.rounds,
            check_every,
            console,
        )

    # Start

    def begin(self, epochs: int, deciding_hooks: list[str]) -> None:
        """Agree on the epochs, and make all workers' variables equal.

        Args:
            epochs: Int. The number of epochs of this worker's `fit()`.
            deciding_hooks: The step hooks in which a callback of this worker may decide something.
        """
        backends.get().give_iterators(locals_of_fit(self._model).get("epoch_iterator"))
        self._small_batches = division.small_batches_of(locals_of_fit(self._model).get("x"))
        self._check_batches()
        self.progress.begin(epochs)
        self._replicated.unshard(complete=False)  # if an earlier fit() was interrupted
        membership, begin = self._communicator.membership, functools.partial(self._begin, deciding_hooks)
        if membership.is_joining:
            with membership.rehearsing():
                self._replicated.take_choices(membership.note["choices"])
                begin()
            return
        begin() if self._regrouping is None else self._regrouping.begin(begin)
        if self._checkpointing is not None:
            self._checkpointing.begin()

    def _begin(self, deciding_hooks: list[str]) -> None:
        self._meetings.begin()
        saves = None if self._checkpointing is None else self._checkpointing.every
        plan: dict[str, Any] = {"epochs": self.progress.epochs, "checkpoint": saves, "layers": layer_facts(self._model)}
        plan |= {"data": fingerprints.noted(), "first": initial_epoch(self._model), "decides": deciding_hooks}
        all_ranks = everyone_of(self._communicator).all_gather_object(plan)
        first = all_ranks[0]
        for name, rule in (("epochs", "train for the same epochs"), ("checkpoint", "write checkpoints alike, or none")):
            different = [rank for rank, other in enumerate(all_ranks) if other[name] != first[name]]
            if different:
                raise DesyncError(
                    f"all ranks must {rule}. Received: {name}={first[name]} on rank 0, "
                    f"{name}={all_ranks[different[0]][name]} on rank {different[0]}. Run one script on all ranks"
                )
        if self._communicator.is_chief:
            fingerprints.warn_of_different([other["data"] for other in all_ranks])
        check_same_layers([other["layers"] for other in all_ranks])
        if start_with_equal_layers(self._model, everyone_of(self._communicator)) and self._trace_anew is not None:
            self._trace_anew()
        set_initial_epoch(self._model, first["first"])  # BackupAndRestore may have set it on the chief
        given = locals_of_fit(self._model)
        if (
            given.get("steps_per_epoch") is None
            and tf_dataset.is_endless(given.get("x"))
            and self._communicator.is_chief
        ):
            warnings.warn(
                "an epoch must end. Received: a tf.data.Dataset without an end, and no `steps_per_epoch`. Pass "
                "`steps_per_epoch` to `fit()`, or leave out `repeat()`",
                EasyScaleWarning,
                stacklevel=2,
            )
        ends = given.get("steps_per_epoch") is None and any(
            division.is_finite(given.get(name)) for name in ("x", "val_x")
        )
        if ends or self._communicator.is_server:  # a server's data ends before the first step
            warnings.filterwarnings("ignore", "Your input ran out of data")
        if self._served is None:  # else each worker decides for itself between steps
            self._decisions.begin(hook for other in all_ranks for hook in other["decides"])
            self._profile.begin()
        else:
            warn_of_none(self._communicator, f"the exchange '{self._replicated.workers.gradients.exchange.name}'")
        self._pass.begin()
        self._steps.begin()
        self._replicated.begin()
        self.data.settle()

    def enter(self, train_function: TrainFunction) -> None:
        """Join the others in this `fit()` as a replacement; skip it if it is over for them."""
        if self._regrouping is None or not self._regrouping.enter(train_function.function):
            self.passes = True
            set_initial_epoch(self._model, self.progress.epochs)

    # Epochs

    def begin_epoch(self, epoch: int) -> None:
        """Start epoch number `epoch`, from 0; admit replacements that are ready."""
        self.progress.move_to(epoch)
        if self._regrouping is not None:
            self._regrouping.begin_epoch()
        if self._checkpointing is not None:
            self._checkpointing.begin_epoch()
        self.data.begin_epoch(epoch)
        self.progress.begin_epoch()

    @property
    def skips(self) -> bool:
        """True if the next step was made before the checkpoint from which training resumes."""
        return self._served is None and self._checkpointing is not None and self._checkpointing.skips

    def step(self, train_function: TrainFunction, iterator: Iterator) -> Any:
        """Make one step, or `steps_per_execution`, by `train_function.function(iterator)`."""
        self._check_batches()
        if self._train_function is None:
            train_function.begin()
            self._train_function = train_function
        return self._steps.step(train_function, iterator)

    def _check_batches(self) -> None:
        for small in self._small_batches:
            small.check()

    def has_ended(self, evaluates: bool) -> bool:
        """Return whether the step that ends, of training or evaluation, found no more data, so that none was made."""
        if evaluates:
            return self._communicator.is_server
        return self._train_function is not None and self._train_function.has_ended

    def settle(self) -> None:
        """Update the model to the weights of the last step; see `Meetings.settle`."""
        self._meetings.settle()

    def decides_in(self, hook: str) -> bool:
        """Return whether a callback of any worker may decide something in this step hook, and all apply it."""
        return not self.rounds.are_apart and self._decisions.are_made_in(hook)

    def decide(self, of_epoch: bool = False) -> None:
        """Stop if a callback of any worker has decided to, and use the chief's learning rate.

        Args:
            of_epoch: Bool. Whether an epoch begins or ends. Defaults to `False`: a step does.
        """
        self._together(self._decisions.agree, of_epoch)

    def end_data(self, of_epoch: bool, logs: Mapping[str, Any], may_be_whole: bool = False) -> dict:
        """Wait until no worker has more data, and merge metrics; return the logs of all workers.

        Args:
            of_epoch: Bool. Whether it was the data of an epoch, not of a validation.
            logs: The logs of this worker's steps.
            may_be_whole: Bool. Whether each worker may have had all data. Defaults to `False`.
        """
        if of_epoch:
            self._profile.end_data()
        if of_epoch and self._checkpointing is not None:
            self._checkpointing.end_data()
        if of_epoch and self._served is not None:
            self._served.end_epoch()
        merged: dict = {}
        self._together(lambda: merged.update(self._merge(of_epoch, logs, may_be_whole)))
        return merged

    def _merge(self, of_epoch: bool, logs: Mapping[str, Any], may_be_whole: bool) -> dict:
        if of_epoch:
            self.rounds.end_data()
        self._meetings.reach(Purpose.END)
        if of_epoch:
            own = [self.progress.steps, self._pass.has_ended, self.rounds.is_open, self._profile.number]
            all_ranks = self._communicator.all_gather_object(own)[: self._communicator.workers]
            steps, ended, are_open, numbers = zip(*all_ranks, strict=True)
            self.progress.settle(max(steps))
            self._profile.end_epoch(max(numbers))
            self.rounds.end_epoch(any(are_open))
            if isinstance(self._steps, SynchronousSteps):
                self._steps.end_first()
            self._pass.end_epoch(all(ended))
            for variable, mean in batch_normalization.mean_statistics(self._model, self._communicator):
                variable.assign(mean)
            self._own_state.end_epoch()
        return metrics.merge_logs(self._model, self._communicator, logs, may_be_whole)

    def logs(self) -> dict[str, float]:
        """Return the logs of the last epoch besides metrics."""
        elastic = {"workers": float(self._communicator.workers)} if self._communicator.membership.is_elastic else {}
        return elastic if self._served is None else elastic | self._served.logs()

    # End

    def end(self) -> None:
        """Compare the weights once more, and give optimizers their whole state."""
        self._together(self._end)
        if self._checkpointing is not None:
            self._checkpointing.end(self._together)
        if self._served is not None:
            self._served.end()
        self._together(self._replicated.agree_on_random_state)  # a checkpoint has each worker's own

    def _end(self) -> None:
        self.rounds.compare()
        self._replicated.unshard(complete=True)
        self._profile.end()

    def _together(self, act: Callable[[], None], of_epoch: bool = True) -> None:
        act() if self._regrouping is None else self._regrouping.together(act, of_epoch)

    def stop(self) -> None:
        """Leave this `fit()`, whether or not it has ended."""
        self.data.release()
        self._pass.release()
        set_initial_epoch(self._model, None)  # else the next `fit()` would begin there
        if self._checkpointing is not None:
            self._checkpointing.stop()
