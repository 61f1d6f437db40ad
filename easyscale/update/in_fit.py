"""The active update: in some `fit()`s one that divides the optimizer's state, otherwise the replicated one."""

import contextlib
from collections.abc import Callable

import keras

from easyscale.errors import EasyScaleError
from easyscale.layout.sliced import Sliced
from easyscale.optimizers.nested import all_variables
from easyscale.replication.replication import Replication
from easyscale.step.gradients import Gradients
from easyscale.update import backup, choosing
from easyscale.update.asked import Kind
from easyscale.update.base import Update
from easyscale.update.divided import DividedUpdate
from easyscale.update.local import LocalUpdate
from easyscale.update.replicated import ReplicatedUpdate
from easyscale.update.served import ServedUpdate
from easyscale.update.sharded import ShardedUpdate

__all__ = ["UpdateInFit"]


class UpdateInFit:
    """The updates of one optimizer; each `fit()` begins and ends one.

    Args:
        asked: The result of `asked.get` for the user's `update`.
        optimizer: The optimizer inside the `DistributedOptimizer`.
        connect: Function that returns the `Replication`. Called when that is needed.

    Attributes:
        chosen: The chosen `Update`, or `None`.
    """

    def __init__(self, asked: Kind | None, optimizer: keras.optimizers.Optimizer, connect: Callable[[], Replication]):
        self._asked, self._optimizer, self._connect = asked, optimizer, connect
        self._replicated = ReplicatedUpdate(optimizer, [], self._gradients)  # also outside of `fit()`
        self.chosen: Update | None = None
        self._slices: list[Sliced | None] = []  # for each variable, when it was chosen

    def _gradients(self) -> Gradients:
        return self._connect().gradients

    @property
    def now(self) -> Update:
        """The update that is active now."""
        return self.chosen if self.chosen is not None and self.chosen.active else self._replicated

    @property
    def served(self) -> ServedUpdate | None:
        """The update at asynchronous servers, or `None`."""
        return self.chosen if isinstance(self.chosen, ServedUpdate) else None

    @property
    def local(self) -> LocalUpdate | None:
        """The active update if workers step alone between its rounds, or `None`."""
        return self.now if isinstance(self.now, LocalUpdate) else None

    @property
    def of_checkpoints(self) -> Update:
        """The update whose state a checkpoint contains: a local one even after its `fit()`."""
        return self.chosen if isinstance(self.chosen, LocalUpdate) else self.now

    @property
    def is_synchronous(self) -> bool:
        """True if all workers agree in each step of a `fit()`. Known before an update is chosen."""
        return choosing.kind_for(self._gradients().exchange).is_synchronous

    def check_step(self, is_first: bool) -> None:
        """Raise `ValueError` in a custom training loop if the workers' steps are not synchronous.

        Args:
            is_first: Bool. Whether there was neither a step nor a `fit()` before.
        """
        in_loop = is_first or (self.served is not None and not self.served.active)
        if in_loop and not self.is_synchronous:
            raise ValueError(
                f"the exchange '{self._gradients().exchange.name}' needs a `fit()` with "
                "`easyscale.callbacks.Distribute()`. Received: a training loop without it. Use 'parameter_server', or "
                "`fit()`"
            )

    def begin(self, variables: list[keras.Variable]) -> None:
        """Begin the update of a `fit()` that trains these variables: divide the optimizer's state, if possible."""
        self._gradients().early.forget()
        slices = [*self._gradients().slices.of(variables), *self._gradients().groups.of(variables)]
        if self.is_synchronous:
            self._gradients().choose(variables)
        if self.chosen is None or slices != self._slices:
            self._slices = slices
            update = choosing.choose(self._asked, self._optimizer, variables, self._gradients())
            is_replicated = update is ReplicatedUpdate
            self.chosen = self._replicated if is_replicated else update(self._optimizer, variables, self._gradients)
        self.chosen.begin()

    def end(self, complete: bool) -> None:
        """End the update of a `fit()`, if one is active: make the optimizer's state whole again.

        Args:
            complete: Bool. Whether all workers call this. If not, the state is lost.
        """
        if not complete and self.now.late is not None:
            with contextlib.suppress(Exception):  # failed workers have not sent their parts
                self.now.late.settle()
            self.now.late.drop()
        if self.now.active:
            self._gradients().early.forget()
            self._connect().replicas.apart(self.now.end if complete else self.now.abandon)

    def set(self, name: str, value: float | None) -> None:
        """Called after a hyperparameter was set on the optimizer."""
        if self.chosen is not None:
            self.chosen.set(name, value)

    def load(self, values: list) -> None:
        """Set the result of `Update.collect`, on this or another number of workers. All workers must call this.

        Raises:
            EasyScaleError: If the numbers of values and variables differ.
        """
        update = self.of_checkpoints
        if len(values) != len(update.variables):
            raise EasyScaleError(
                f"a checkpoint must be of the same optimizers. Received: {len(values)} variables in it, "
                f"{len(update.variables)} of '{self._optimizer.name}'. Use another folder for another optimizer"
            )
        update.load(values)

    def state_tree(self, value_format: str) -> dict:
        """Return the optimizer's part of `Model.get_state_tree`, in a `fit()` with a divided state."""
        assert isinstance(self.chosen, DividedUpdate)
        return self.chosen.state_tree(value_format)

    # Workers that fail

    def back_up(self) -> None:
        """Copy each worker's part of the state, if it has one, to a second worker. All workers must call this."""
        if isinstance(self.now, ShardedUpdate):
            self.now.back_up()

    def make_whole(self, has_joined: bool) -> None:
        """Make the optimizer's state whole after workers failed or joined. All remaining workers must call this.

        Args:
            has_joined: Bool. Whether this worker has just joined, and has no state.

        Raises:
            PeerError: If a worker has failed and the next one, which had a copy of its part, as well.
        """
        replication = self._connect()
        communicator, is_divided = replication.communicator, self.now.divides_state
        all_ranks = communicator.all_gather_object("none" if has_joined else "part" if is_divided else "whole")
        if "part" not in all_ranks:
            return
        if "whole" in all_ranks:  # on a worker that got further in this before another failed
            if is_divided:
                self.now.abandon(lost=False)
            replication.replicas.start_equal(all_variables(self._optimizer), root=all_ranks.index("whole"))
        elif isinstance(self.now, ShardedUpdate):
            self.now.recover()
        else:
            backup.collect(communicator, None, [])
        self.chosen = None
