"""The workers that `Distribute(model_parallel=...)` makes of ranks: each has several stages."""

from collections.abc import Mapping
from typing import Any

import keras

from easyscale import called, mesh, replication
from easyscale import communicator as communicators
from easyscale.communicator import Communicator
from easyscale.parallel import Pipeline
from easyscale.parallel.pipeline.built import on_built
from easyscale.training.pipelined.distribution import PipelineDistribution
from easyscale.training.pipelined.first_call import FirstCall, set_options
from easyscale.update import asked as updates
from easyscale.update.local_steps import LocalSteps

__all__ = ["StagesOfRanks"]

_DIVIDE = ("local_batch", "shard")  # these have divided data by the number of workers


class StagesOfRanks:
    """The pipelines that ranks form. Once this exists, `shard` and `local_batch` divide data among them.

    Args:
        pipeline: The `Pipeline`, or `None` if each rank has the whole model.
        communicator: An argument of `easyscale.communicator.get`.
        options: Dict. Arguments of `DistributedOptimizer`.
        check_every: Int. The number of steps between comparisons of the pipelines' weights.
        ranks: Int. The number of ranks of a worker if there is no pipeline. Defaults to `1`.

    Attributes:
        pipeline: The `Pipeline`. `None` also with one rank, which has all stages.

    Raises:
        ValueError: If pipelines are not possible.
    """

    def __init__(
        self,
        pipeline: Pipeline | None,
        communicator: str | Communicator | None,
        options: Mapping[str, Any],
        check_every: int,
        ranks: int = 1,
    ):
        self._check_every = check_every
        self.pipeline: Pipeline | None = None
        self._options = {name: value for name, value in options.items() if name not in ("communicator", "replication")}
        self._too_early: set[str] = set()
        if pipeline is not None:
            self._communicator = communicators.get(communicator)  # so that errors are shown in one line
            _check(pipeline, options, self._communicator)
            if self._communicator.size > 1:
                pipeline.check(self._communicator.size)
            self.pipeline = pipeline if self._communicator.size > 1 else None
            set_options(pipeline, self._options)
        ranks = ranks if self.pipeline is None else self.pipeline.ranks_of_worker(self._communicator.size)
        if ranks != mesh.ranks_of_worker():
            self._too_early = called.names.intersection(_DIVIDE)
            called.names.difference_update(self._too_early)
            mesh.set_ranks_of_worker(ranks)

    def distribution_of(self, model: keras.Model, checkpoint: Mapping[str, Any] | None) -> PipelineDistribution:
        """Return the `PipelineDistribution` that trains a model. All ranks must call this.

        Args:
            model: The model.
            checkpoint: Dict. Arguments of `Checkpointing`; `None` for no checkpoints.
        """
        assert self.pipeline is not None
        self.check_order()
        distribution = PipelineDistribution.of(model)
        distribution.prepare(self.pipeline, self._communicator, self._options, self._check_every, checkpoint)
        return distribution

    def check_order(self) -> None:
        """Raise `ValueError` if data was divided before the number of ranks of a worker was set."""
        late = " and ".join(sorted(self._too_early - called.names))
        if late:
            rule = "`Distribute(model_parallel=...)` must be made before data are divided, which ranks then share. "
            if mesh.ranks_of_worker() == 1:
                rule = "`Distribute` behind one with `model_parallel` must be made before data are divided anew. "
            remedy = "Write `distribute = Distribute(...)` above, and pass `callbacks=[distribute]`"
            raise ValueError(f"{rule}Received: {late} called before. {remedy}")


def _check(pipeline: Any, options: Mapping[str, Any], communicator: Communicator) -> None:
    if not isinstance(pipeline, Pipeline):
        raise ValueError(
            "`model_parallel` must be an `easyscale.parallel.Pipeline`, or `Split`. Received: "
            f"model_parallel={pipeline!r}. Write such as `Pipeline(stages=2)`"
        )
    if replication.check(options["replication"]) != replication.DEFAULT:
        raise ValueError(
            "a pipeline has a process for each stage. Received: replication='in_graph'. Leave it, and `--devices`, out"
        )
    if isinstance(updates.get(options["update"]), LocalSteps):
        raise ValueError(
            "the stages of a pipeline step together. Received: "
            f"update={options['update']!r} and `model_parallel`. Leave one of them out"
        )
    if communicator.servers:
        raise ValueError(
            f"the stages of pipelines have their weights themselves. Received: {communicator.servers} servers. Start "
            "without --servers"
        )


on_built(FirstCall)
