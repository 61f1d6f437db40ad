"""Which update is at work: in some `fit()`s one that divides the optimizer's state, else the one that does not."""

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
    """The updates of one optimizer, of which each `fit()` begins and ends one.

    Args:
        asked: What `asked.get` has returned of what the user has said.
        optimizer: The optimizer inside the `DistributedOptimizer`.
        connect: Function that returns all workers, as one of them sees them. It is called when they are needed.

    Attributes:
        chosen: The `Update` that has been chosen, or `None`.
    """

    def __init__(self, asked: Kind | None, optimizer: keras.optimizers.Optimizer, connect: Callable[[], Replication]):
        self._asked, self._optimizer, self._connect = asked, optimizer, connect
        self._replicated = ReplicatedUpdate(optimizer, [], self._gradients)  # also outside of `fit()`
        self.chosen: Update | None = None
        self._slices: list[Sliced | None] = []  # of what each variable was a slice when it was chosen

    def _gradients(self) -> Gradients:
        return self._connect().gradients

    @property
    def now(self) -> Update:
        """What updates the weights now."""
        return self.chosen if self.chosen is not None and self.chosen.active else self._replicated

    @property
    def served(self) -> ServedUpdate | None:
        """The update that is at servers, which wait for no worker; or `None`."""
        return self.chosen if isinstance(self.chosen, ServedUpdate) else None

    @property
    def local(self) -> LocalUpdate | None:
        """The update by which workers step alone between rounds, if it is at work; or `None`."""
        return self.now if isinstance(self.now, LocalUpdate) else None

    @property
    def of_checkpoints(self) -> Update:
        """The update whose state a checkpoint has: behind a `fit()` of workers that stepped alone theirs as well."""
        return self.chosen if isinstance(self.chosen, LocalUpdate) else self.now

    @property
    def is_synchronous(self) -> bool:
        """Whether all workers agree in each step of a `fit()`. It is known before an update is chosen."""
        return choosing.kind_for(self._gradients().exchange).is_synchronous

    def check_step(self, is_first: bool) -> None:
        """Raise `ValueError` in a step of a loop of the user's own if workers do not agree in each.

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
        """Begin the update of a `fit()` that trains these variables: divide the optimizer's state, if it can be."""
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
        """End the update of a `fit()`, if one is at work: make the optimizer's state whole again.

        Args:
            complete: Bool. Whether all workers do. If not, it is lost.
        """
        if not complete and self.now.late is not None:
            with contextlib.suppress(Exception):  # workers that have failed have not sent what they own
                self.now.late.settle()
            self.now.late.drop()
        if self.now.active:
            self._gradients().early.forget()
            self._connect().replicas.apart(self.now.end if complete else self.now.abandon)

    def set(self, name: str, value: float | None) -> None:
        """Take in that a hyperparameter has been set on the optimizer."""
        if self.chosen is not None:
            self.chosen.set(name, value)

    def load(self, values: list) -> None:
        """Set what `Update.collect` has returned, on this or another number of workers. All workers must call this.

        Raises:
            EasyScaleError: If there are more or fewer values than variables.
        """
        update = self.of_checkpoints
        if len(values) != len(update.variables):
            raise EasyScaleError(
                f"a checkpoint must be of the same optimizers. Received: {len(values)} variables in it, "
                f"{len(update.variables)} of '{self._optimizer.name}'. Use another folder for another optimizer"
            )
        update.load(values)

    def state_tree(self, value_format: str) -> dict:
        """Return what `Model.get_state_tree` does of an optimizer, in a `fit()` in which its state is divided."""
        assert isinstance(self.chosen, DividedUpdate)
        return self.chosen.state_tree(value_format)

    # Workers that fail

    def back_up(self) -> None:
        """Have each worker's part of the state on two workers, if it has a part. All workers must call this."""
        if isinstance(self.now, ShardedUpdate):
            self.now.back_up()

    def make_whole(self, has_joined: bool) -> None:
        """Make the optimizer's state whole when workers have failed, or come. All that are left must call this.

        Args:
            has_joined: Bool. Whether this worker has just come, and has no state.

        Raises:
            PeerError: If a worker has failed and the next one, which had a copy of its part, as well.
        """
        replication = self._connect()
        communicator, is_divided = replication.communicator, self.now.divides_state
        all_ranks = communicator.all_gather_object("none" if has_joined else "part" if is_divided else "whole")
        if "part" not in all_ranks:
            return
        if "whole" in all_ranks:  # on one that came further when another worker failed in the midst of this
            if is_divided:
                self.now.abandon(lost=False)
            replication.replicas.start_equal(all_variables(self._optimizer), root=all_ranks.index("whole"))
        elif isinstance(self.now, ShardedUpdate):
            self.now.recover()
        else:
            backup.collect(communicator, None, [])
        self.chosen = None
