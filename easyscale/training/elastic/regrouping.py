"""Failures of workers, and their replacements, in one `fit()`."""

from collections.abc import Callable, Iterator
from typing import Any

from easyscale.keras_internals import set_initial_epoch
from easyscale.step.agreement import Purpose
from easyscale.training.callback_state import CallbackStates
from easyscale.training.checkpointing import Checkpointing
from easyscale.training.console import Console
from easyscale.training.elastic import joining
from easyscale.training.elastic.recovery import Recovery
from easyscale.training.fit_progress import FitProgress
from easyscale.training.meetings import Meetings
from easyscale.training.parts import metrics
from easyscale.training.parts.divided_data import DividedData
from easyscale.training.parts.layer_states import LayerStates
from easyscale.training.replicated_model import ReplicatedModel
from easyscale.training.training_state import TrainingState

__all__ = ["Regrouping"]

_BACK_UP_EVERY = 20  # steps


class Regrouping:
    """The failures and replacements of workers in one `fit()` of an elastic job.

    Args:
        replicated: The `ReplicatedModel`.
        state: The `TrainingState`.
        progress: The `FitProgress`.
        meetings: The `Meetings`.
        data: The `DividedData`.
        callbacks: The `CallbackStates`.
        checkpointing: The `Checkpointing`, or `None`.
        console: The `Console`.
        trace_anew: Function. Forces a retrace of the next step, for other workers.
        take_over: Function. Called when this worker becomes the chief; takes the logs of the epochs so far, the steps
            so far, and the epoch in progress or `None`. Returns the callbacks, if they have changed.
    """

    def __init__(
        self,
        replicated: ReplicatedModel,
        state: TrainingState,
        progress: FitProgress,
        meetings: Meetings,
        data: DividedData,
        callbacks: CallbackStates,
        checkpointing: Checkpointing | None,
        console: Console,
        trace_anew: Callable[[], None],
        take_over: Callable[[dict[str, list], int, int | None], list | None],
    ):
        self._model, self._optimizers, self._replication = replicated.model, replicated.optimizers, replicated.workers
        self._replicated, self._progress = replicated, progress
        self._state, self._meetings, self._data, self._callbacks = state, meetings, data, callbacks
        self._checkpointing, self._console = checkpointing, console
        self._trace_anew, self._take_over = trace_anew, take_over
        self._communicator = self._replication.communicator
        self._recovery = Recovery(
            self._replication, state, progress, self._renew, self._settle, self._lose, self._welcome
        )
        meetings.register(Purpose.BACKUP, lambda _: self._send_backups())
        self._has_joined = False  # and has not begun an epoch since
        self._is_stale = False  # the traced step, because each worker has another part of the state
        self._was_chief = self._communicator.is_chief
        self._was_alone = self._communicator.size == 1  # a step traced then exchanges nothing

    # Collective operations

    def survives(self, error: Exception, steps: int) -> bool:
        """See `Recovery.survives`."""
        return self._recovery.survives(error, steps)

    def together(self, act: Callable[[], Any], of_epoch: bool = True) -> None:
        """Call a collective operation, again with the remaining workers if one has failed.

        Args:
            act: Function. May be called several times.
            of_epoch: Bool. Whether an epoch begins or ends, so that all check that `act` is done with the same workers.
                Metrics are restored before `act` is called again. Defaults to `True`.
        """
        if not self._replicated.is_elastic:
            act()
        elif of_epoch:
            self._recovery.repeat(act, metrics.restorer(self._model.metrics))
        else:
            self._recovery.retry(act)

    def begin(self, act: Callable[[], None]) -> None:
        """Call a collective operation at the start of a `fit()`."""
        self._recovery.repeat(act)

    # Failed workers

    def _renew(self, exchanges: int) -> None:
        self._is_stale |= self._replicated.is_sharded
        for optimizer in self._optimizers:
            optimizer.workers.steps.shrink(exchanges)
        for optimizer in self._optimizers:
            optimizer.make_whole(has_joined=self._progress.exchanges < 0)

    def _settle(self, steps: int) -> None:
        """Continue after all workers have agreed that `steps` steps are done, and have the same state."""
        self._progress.settle(steps)
        self._data.settle()
        self._replicated.shard()
        if self._was_alone and self._communicator.size > 1:
            self._is_stale, self._model.test_function = True, None
        self._was_alone = self._communicator.size == 1
        if self._is_stale or self._replicated.is_sharded:
            self._is_stale = False
            self._progress.trace_anew()
            self._trace_anew()
        if self._checkpointing is not None:
            self._checkpointing.meet_at(steps)  # whether or not this worker has completed the last meeting

    def back_up(self, before: int, after: int) -> None:
        """Copy the parts of a sharded optimizer's state to other workers if that is due, after one or more steps."""
        is_due = before // _BACK_UP_EVERY < after // _BACK_UP_EVERY
        if is_due and self._replicated.is_sharded:
            self._meetings.reach(Purpose.BACKUP, after)
            self._send_backups()

    def _send_backups(self) -> None:
        """Copy each worker's part of the optimizers' state to another worker. All workers must call this."""
        for optimizer in self._optimizers:
            optimizer.back_up()

    def _lose(self, initial_ranks: list[int]) -> None:
        """Handle the failure of workers."""
        progress = self._progress
        if self._communicator.is_chief and not self._was_chief:
            self._was_chief = True
            callbacks = self._take_over(
                self._state.past.so_far(), progress.steps, progress.epoch if progress.in_epoch else None
            )
            if callbacks:
                self._callbacks.change(callbacks)
            if self._checkpointing is not None:
                self._checkpointing.take_over(progress.steps)
        who, size = ", ".join(f"rank {rank}" for rank in initial_ranks), self._communicator.size
        until = " until it is replaced" if self._replace() else ""
        part = f"{len(initial_ranks)}/{size + len(initial_ranks)} of each step"
        becomes = f"is not trained on{until}"
        if self._data.keeps_global_batch:
            becomes = "is divided among them"
        go = "workers go" if size > 1 else "worker goes"
        self._console.say(f"step {progress.steps} lost {who}; {size} {go} on. Its part of the data, {part}, {becomes}")

    # Replacements

    def _replace(self) -> bool:
        """On the chief, start to replace failed workers; return whether they are replaced."""
        communicator = self._communicator
        if not communicator.membership.respawns or communicator.rank > 0:
            return False
        choices = [optimizer.workers.gradients.config.chosen() for optimizer in self._optimizers]
        wrong = communicator.membership.replace_lost({"fit": self._progress.number, "choices": choices})
        if wrong:
            self._console.say(wrong)
        return communicator.membership.replaces

    def begin_epoch(self) -> None:
        """Admit replacements that are ready, before an epoch begins."""
        if self._has_joined:  # it joined while the others were here
            self._has_joined = False
        elif self._communicator.membership.respawns and self._replicated.is_elastic:
            self.together(self._admit)

    def _admit(self) -> None:
        self._replace()
        newcomers = self._communicator.all_gather_object(self._communicator.membership.ready(self._progress.number))[0]
        if newcomers:
            self._communicator.membership.admit(newcomers)
            self._recovery.agree()

    def _welcome(self, root: int, has_joined: bool) -> None:
        """Send newcomers the state besides the variables: the chief's, or the next worker's if the chief has failed."""
        communicator, progress = self._communicator, self._progress
        joining.give_state(self._state, communicator, root, has_joined)
        if has_joined and LayerStates(self._model).layers:  # the step was traced with other layer state
            self._is_stale, self._model.test_function, self._model.predict_function = True, None, None
        own = communicator.membership.initial_ranks[communicator.rank] if has_joined else None
        numbers = communicator.all_gather_object(own)
        if has_joined:
            set_initial_epoch(self._model, progress.epoch)
            if self._checkpointing is not None:
                self._checkpointing.enter()
        who = [f"rank {rank}" for rank in numbers if rank is not None]
        are = "has been" if len(who) == 1 else "have been"
        self._console.say(
            f"epoch {progress.epoch + 1} begins with {communicator.size} workers: {', '.join(who)} {are} replaced"
        )

    def enter(self, train_function: Callable[[Iterator], Any]) -> bool:
        """Join the others in this `fit()` as a replacement; return whether it is still in progress for them."""
        communicator, number = self._communicator, self._progress.number
        if communicator.membership.note["fit"] == number:
            with communicator.membership.rehearsing(), self._replication.steps.explained(lambda: None):
                joining.rehearse(train_function, self._model)
        if communicator.membership.note["fit"] != number or not communicator.membership.join(number):
            return False
        self._progress.wait_to_join()
        self._recovery.repeat(self._join_or_admit)
        self._has_joined = True
        return True

    def _join_or_admit(self) -> None:
        if self._progress.exchanges < 0:
            self._recovery.agree()
        else:
            self._admit()
