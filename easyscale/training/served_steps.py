"""Steps of a `fit()` in which no worker waits for another inside an epoch: servers apply gradients as they arrive."""

from collections.abc import Iterator
from typing import Any

from easyscale.progress import Activity
from easyscale.serving import Staleness
from easyscale.step.served import Served
from easyscale.training.checkpointing import Checkpointing
from easyscale.training.console import Console
from easyscale.training.elastic.recovery import shrink
from easyscale.training.fit_progress import FitProgress
from easyscale.training.replicated_model import ReplicatedModel
from easyscale.training.train_function import TrainFunction
from easyscale.update.served import ServedUpdate

__all__ = ["ServedSteps"]


class ServedSteps:
    """Steps that each worker makes alone inside an epoch, and collective operations at its start and its end.

    Checkpoints are written between epochs. A worker's weights are those of its last pull. At the end of an epoch all
    ranks receive the servers' weights, so callbacks see and save the same ones on all of them.

    Args:
        replicated: The `ReplicatedModel`.
        progress: The `FitProgress`.
        checkpointing: The `Checkpointing`, or `None`.
        console: The `Console`.
    """

    def __init__(
        self,
        replicated: ReplicatedModel,
        progress: FitProgress,
        checkpointing: Checkpointing | None,
        console: Console,
    ):
        self._model, self._optimizers = replicated.model, replicated.optimizers
        self._communicator = replicated.workers.communicator
        self._replicated, self._progress, self._checkpointing = replicated, progress, checkpointing
        self._console = console
        self._begun = False  # whether the servers have started this epoch
        self._counted: list[list[Staleness]] = []  # for each epoch, by server
        self._logs: Any = {}

    @property
    def _served(self) -> list[ServedUpdate]:
        return [optimizer.updates.served for optimizer in self._optimizers if optimizer.updates.served is not None]

    @property
    def _servers(self) -> list[Served]:
        return [served.servers for served in self._served]

    def begin(self) -> None:
        """Do nothing: the first step starts the servers."""

    def step(self, train_function: TrainFunction, iterator: Iterator) -> Any:
        """Make one step, or `steps_per_execution`, by `train_function.function(iterator)`."""
        told, steps, checkpointing = self._communicator.progress, self._progress.steps, self._checkpointing
        told.step, told.activity = steps, Activity.STEPS if steps else Activity.FIRST_STEP
        if not self._begun:
            self._replicated.build(iterator, traces=checkpointing is not None and checkpointing.needs_metrics)
            if checkpointing is not None:
                checkpointing.put_back()
                checkpointing.before_step(self._progress.steps)
            if self._communicator.is_server:  # before it serves, in the background
                train_function.rehearse(self._replicated.rehearse, iterator)
            self._begin_epoch()
        if self._communicator.is_server:
            raise StopIteration
        count = self._model.steps_per_execution
        if any(servers.client.skip(count) for servers in self._servers):
            for _ in range(count):
                next(iterator)  # the others have made this step without this worker
        else:
            self._logs = train_function.function(iterator)
        self._progress.count(count)
        if any(servers.client.stop for servers in self._servers):
            self._model.stop_training = True
        return self._logs

    def _begin_epoch(self) -> None:
        self._begun = True
        for servers in self._servers:
            servers.begin_epoch()

    def end_epoch(self) -> None:
        """Wait until no worker has more data, and receive the servers' weights."""
        if self._progress.steps == 0 and not self._communicator.is_server:
            raise ValueError(
                "a worker must have data where servers do not wait for all workers. Received: none in this fit() "
                f"on worker {self._communicator.rank}. Give each worker at least one batch"
            )
        if not self._begun:  # Keras has called no step
            self._begin_epoch()
        self._begun = False
        stops = [servers.end_epoch(bool(self._model.stop_training)) for servers in self._servers]
        if self._communicator.membership.is_elastic:
            self._shrink()
        for served in self._served:
            served.take_weights()
        self._model.stop_training = bool(self._model.stop_training) or any(stops)
        self._counted.append([staleness for servers in self._servers for staleness in servers.staleness()])

    def _shrink(self) -> None:
        """Continue with the remaining workers, which are renumbered."""
        before = self._communicator.workers
        lost, names, *_ = shrink(self._communicator)
        if lost:
            made = [servers.shrink(lost) for servers in self._servers][0]
            who = ", ".join(
                f"rank {name} after {made.get(rank, 0)} of its steps" for rank, name in zip(lost, names, strict=True)
            )
            self._console.say(
                f"epoch {len(self._counted) + 1} lost {who}; {before - len(lost)} workers go on. The rest of its data, "
                f"{len(lost)}/{before} of the workers' in each epoch, is not trained on"
            )

    def logs(self) -> dict[str, float]:
        """Return the staleness of the last epoch's gradients."""
        epoch = Staleness.together(self._counted[-1])
        logs = {"staleness": epoch.mean, "staleness_max": float(epoch.largest)}
        return logs | ({"dropped": epoch.dropped / len(self._counted[-1])} if epoch.dropped else {})

    def end(self) -> None:
        """Report the staleness of all gradients."""
        epochs = [Staleness.together(counted) for counted in self._counted]
        servers = len(self._counted[0]) if epochs else 0  # each server has counted its part of every gradient
        histograms = [{steps: count / servers for steps, count in sorted(epoch.counts.items())} for epoch in epochs]
        self._model.history.history["staleness_histogram"] = histograms
        if servers:
            self._console.say(Staleness.together(epochs).describe(servers))
