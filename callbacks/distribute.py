"""`Distribute`, the callback that makes `fit()` distributed."""

import numbers
import os
import re
from pathlib import Path
from typing import Any

import keras

from easyscale import backend, versions
from easyscale import communicator as communicators
from easyscale import compression as compressions
from easyscale.backend.base import Feature
from easyscale.checkpoint.folder import Checkpoints
from easyscale.communicator import Communicator
from easyscale.compression import Compression
from easyscale.errors import is_number
from easyscale.exchange import Exchange
from easyscale.optimizer import DistributedOptimizer
from easyscale.parallel import Pipeline, Split
from easyscale.settings import Settings
from easyscale.training.callback_list import attach, on_set_model
from easyscale.training.callback_state import remember
from easyscale.training.console import Console
from easyscale.training.distribution import Distribution
from easyscale.training.pipelined.stages_of_ranks import StagesOfRanks
from easyscale.training.profile import warn_of_none
from easyscale.training.split import refusals
from easyscale.training.split.group_of_ranks import ranks_of_group, workers_of_groups
from easyscale.training.without_xla import compile_without_xla
from easyscale.update import asked as updates
from easyscale.update.asked import Identifier

__all__ = ["Distribute"]

_EVERY, _KEEP = "10min", 3


class Distribute(keras.callbacks.Callback):
    """Train one model on all workers: pass this callback to `fit()`, on every worker.

    - The model's optimizer, and every other optimizer among its attributes, is wrapped in a `DistributedOptimizer`,
      unless it already is one.
    - All workers start from the chief's weights and optimizer state. Dropout and augmentation differ between workers.
    - A worker's gradients are weighted by its number of samples in the step. Losses with masks, sample weights or sums
      are normalized over the global batch. A worker that runs out of data early takes part in the others' steps with
      weight zero until the epoch ends for all.
    - At the end of an epoch, the states of the metrics, including those of validation, are merged over workers. Every
      callback sees the result, regardless of its position in the list.
    - A decision of a callback on one worker (to stop, or the chief's learning rate) applies to all workers. Callbacks
      that display or write, such as the progress bar and `ModelCheckpoint`, run only on the chief.
    - The workers' weights are compared after the first step, every `check_every` steps, and at the end.

    With one worker, `fit()` trains as it does without this callback. A second `fit()` or a new `compile()` needs
    nothing else. In the `callbacks` of `evaluate()` on all workers, it merges their metrics; without it, each worker
    evaluates its own data only.

    Args:
        exchange: An argument of `easyscale.exchange.get`: `"ring"`, `"tree"`, an `Exchange`, ... Defaults to `None`:
            that of `easyscale launch --exchange`, else `"auto"`.
        replication: String. `"between_graph"` or `"in_graph"`. Defaults to `None`: that of `easyscale launch
            --replication`, else `"between_graph"`.
        update: `"replicated"`, `"sharded"`, `"local_sgd"`, `"diloco"`, `"gossip"`, or an instance, such as
            `easyscale.update.LocalSGD(every=16)`. See `DistributedOptimizer`. Defaults to `None`: `"sharded"` if the
            model's optimizer supports it, there are at least 64 KB of weights, and the job is not elastic.
        compression: Compression of gradients between processes: `"int8"`, `"bf16"`, ..., or an instance, such as
            `easyscale.compression.FP16()`; or `"auto"`, chosen by timing. See `DistributedOptimizer`. Defaults to
            `None`: that of `easyscale launch --compression`, else none.
        bucket_bytes: Int. Approximate size of the buckets in which gradients travel during the backward pass, and
            weights during the start of the next step. Defaults to `None`: one bucket within a node; between nodes, a
            size chosen by measuring.
        communicator: An argument of `easyscale.communicator.get`. Defaults to `None`.
        model_parallel: `easyscale.parallel.Pipeline`, or `Split`. A pipeline cuts the model into stages on neighbouring
            ranks, which then form one worker. `Split` divides the weights of some layers over the workers or, with
            `group`, over neighbouring ranks, which then form one worker. `Pipeline(split=...)` combines both. Create
            this callback before you call `easyscale.shard` and `local_batch`. With one rank, none has an effect.
            Defaults to `None`: every rank trains the whole model.
        check_every: Int. Number of steps between comparisons of the workers' weights. Defaults to `100`.
        checkpoint: String or path. A folder for checkpoints of the full state of this `fit()`, a separate one for each
            `fit()`. If it has checkpoints, training continues from the last one. Defaults to `None`: none are written.
        every: Int, or string. Interval between checkpoints: a number of steps, or a time, such as `"90s"`, `"10min"`
            or `"1h"`. Defaults to `None`: `"10min"`.
        keep: Int. Number of most recent checkpoints to keep; fewer on a full disk. Defaults to `None`: `3`.

    Raises:
        ValueError: If an argument is invalid, or the model's optimizer is already distributed in another way.
        DesyncError: In `fit()`, if workers differ in exchange, model, gradients, epochs or weights.

    Example:

    >>> x, y = easyscale.shard(x, y)
    >>> model.fit(x, y, batch_size=easyscale.local_batch(256), callbacks=[easyscale.callbacks.Distribute("ring")])
    """

    def __init__(
        self,
        exchange: str | Exchange | type[Exchange] | None = None,
        replication: str | None = None,
        update: Identifier = None,
        compression: str | Compression | type[Compression] | None = None,
        bucket_bytes: int | None = None,
        communicator: str | Communicator | None = None,
        model_parallel: Pipeline | Split | None = None,
        check_every: int = 100,
        checkpoint: str | os.PathLike | None = None,
        every: int | str | None = None,
        keep: int | None = None,
    ):
        super().__init__()
        if not is_number(check_every, 1, whole=True) or isinstance(check_every, bool):
            raise ValueError(f"`check_every` must be a positive integer. Received: {check_every=}")
        self._options: dict[str, Any] = {
            "exchange": exchange,
            "replication": replication,
            "update": update if isinstance(update, str) else updates.get(update),
            "compression": compressions.given(compression),
            "bucket_bytes": bucket_bytes,
            "communicator": communicator,
        }
        DistributedOptimizer("sgd", **self._options)  # checks the arguments now, not in fit()
        self._split = model_parallel if isinstance(model_parallel, Split) else None
        pipeline = None if isinstance(model_parallel, Split) else model_parallel
        if model_parallel is not None:
            backend.get().require(Feature.PIPELINE)
        if self._split is not None or getattr(pipeline, "split", None) is not None:
            refusals.check_arguments(self._options, checkpoint)
        self._group = ranks_of_group(self._split, communicator)
        self._parallel = StagesOfRanks(pipeline, communicator, self._options, check_every, self._group)
        self._check_every = check_every
        self._taken: keras.callbacks.CallbackList | None = None
        steps, seconds = _interval(_EVERY if every is None else every)
        if keep is not None and (not is_number(keep, 1, whole=True) or isinstance(keep, bool)):
            raise ValueError(f"`keep` must be a positive integer. Received: {keep=}")
        if checkpoint == "" or not isinstance(checkpoint, (str, os.PathLike, type(None))):
            raise TypeError(f"`checkpoint` must be the path of a folder. Received: {checkpoint=}")
        if checkpoint is not None and os.path.exists(checkpoint) and not os.path.isdir(checkpoint):
            raise ValueError(f"`checkpoint` must be a folder. Received: '{checkpoint}', which is a file")
        for name, value in (("every", every), ("keep", keep)):
            if checkpoint is None and value is not None:
                raise ValueError(
                    f"`{name}` needs `checkpoint`, the folder that checkpoints are written to. Received: "
                    f"{name}={value!r}, {checkpoint=}. Pass `checkpoint='run'` as well, or leave `{name}` out"
                )
        resume = Settings.read().resume
        source = resume or checkpoint
        self._checkpoint: dict[str, Any] | None = None  # arguments of `Checkpointing`
        if source is not None:
            self._checkpoint = {
                "written": None if checkpoint is None else Checkpoints(Path(checkpoint), keep or _KEEP),
                "source": Checkpoints(Path(source)),
                "required": resume is not None,
                "steps": steps,
                "seconds": seconds,
            }

    def take(self, callbacks: keras.callbacks.CallbackList, model: keras.Model) -> None:
        """Distribute `model`. Called before the callbacks of the list receive it."""
        if self._parallel.pipeline is not None:
            self._taken = callbacks
            remember(callbacks.callbacks)
            pipelines = self._parallel.distribution_of(model, self._checkpoint)
            attach(callbacks, pipelines, has_checkpoints=self._checkpoint is not None)
            warn_of_none(communicators.get(self._options["communicator"]), "a pipeline")
            if pipelines.exchanges_in_graphs:
                compile_without_xla(model, pipelines.is_chief)
            return
        distribution, options = Distribution.of(model), self._options
        self._parallel.check_order()
        if self._group > 1:
            options = {**options, "communicator": workers_of_groups(options["communicator"], self._group)}
        distribution.wrap_optimizers(options)
        if not distribution.optimizers:
            return  # `predict()` needs none; for `fit()`, `on_train_begin` raises an error
        self._taken = callbacks
        distribution.check_every, distribution.checkpoint = self._check_every, self._checkpoint
        distribution.split_by(self._split if distribution.ranks > 1 else None)
        if distribution.ranks > 1 or self._checkpoint or distribution.is_elastic:
            remember(callbacks.callbacks)
            timeline = distribution.optimizers[0].workers.communicator.timeline
            attach(callbacks, distribution, timeline, has_checkpoints=self._checkpoint is not None)
        if distribution.ranks > 1:
            compile_without_xla(model, distribution.is_chief)

    def on_train_begin(self, logs: dict | None = None) -> None:
        if self._taken is None:
            raise ValueError(
                "`Distribute` must stand in the list of callbacks that `fit()` gets, and the model must have an "
                "optimizer among its attributes. Call `model.compile(...)`, then `model.fit(callbacks=[Distribute()])`"
            )
        optimizers = [] if self._parallel.pipeline is not None else Distribution.of(self.model).optimizers
        for line in (versions.untried(backend.get().name), backend.get().advice(optimizers)):
            if line is not None:
                communicator = communicators.get(self._options["communicator"])
                Console(communicator, bool(self.params.get("verbose"))).say_once(line)


def _interval(every: int | str) -> tuple[int, float]:
    """Return the steps and the seconds between checkpoints; one of them is 0."""
    if isinstance(every, numbers.Integral) and not isinstance(every, bool) and every > 0:
        return int(every), 0.0
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", every) if isinstance(every, str) else None
    if match is None or float(match[1]) == 0:
        raise ValueError(
            f"`every` must be a number of steps, or a time such as '90s', '10min' or '1h'. Received: {every=}"
        )
    return 0, float(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]]


def _take(callbacks: keras.callbacks.CallbackList, model: keras.Model) -> None:
    classes = [
        callback for callback in callbacks.callbacks if isinstance(callback, type) and issubclass(callback, Distribute)
    ]
    found = [callback for callback in callbacks.callbacks if isinstance(callback, Distribute)]
    if classes:
        communicators.get()  # so that errors are shown in one line
        raise ValueError(
            f"`callbacks` must be instances. Received: the class {classes[0].__name__}. Write `{classes[0].__name__}()`"
        )
    if len(found) > 1:
        raise ValueError(
            f"`Distribute` must stand in the list of callbacks once. Received: {len(found)} of them. Leave all but one "
            "out"
        )
    for distribute in found:
        distribute.take(callbacks, model)


on_set_model(_take)
