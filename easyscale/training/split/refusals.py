"""Options that cannot be combined with split layers, each refused in one line before the first step."""

import os
from collections.abc import Mapping
from typing import Any

from easyscale import replication
from easyscale.optimizer import DistributedOptimizer
from easyscale.settings import Settings

__all__ = ["check_arguments", "check_job"]


def check_arguments(options: Mapping[str, Any], checkpoint: str | os.PathLike | None) -> None:
    """Raise `ValueError` if layers cannot be split with these arguments of `Distribute`.

    Args:
        options: Dict. Arguments of `DistributedOptimizer`.
        checkpoint: String or path. The folder for checkpoints, or `None`.
    """
    if replication.check(options["replication"]) != replication.DEFAULT:
        raise ValueError(
            "layers are split over processes. Received: replication='in_graph'. Leave it, and `--devices`, out"
        )
    if options["update"] not in (None, "sharded"):
        raise ValueError(
            "each worker updates its slices of layers that are split. Received: "
            f"update={options['update']!r}. Use `update='sharded'`, or leave it out"
        )
    if checkpoint is not None or Settings.read().resume is not None:
        raise ValueError(
            "a `fit()` with split layers writes no checkpoints of its own yet. Received: `checkpoint`, or `--resume`. "
            "Use `keras.callbacks.ModelCheckpoint`"
        )


def check_job(optimizers: list[DistributedOptimizer]) -> None:
    """Raise `ValueError` if layers cannot be split over the workers of these optimizers of a model."""
    replication = optimizers[0].workers
    communicator, exchange = replication.communicator, replication.gradients.exchange
    for is_so, rule, received, remedy in (
        (
            not optimizers[0].is_synchronous,
            "workers that have slices of layers must wait for each other",
            f"exchange='{exchange.name}'",
            "Use 'ring'",
        ),
        (
            bool(communicator.servers),
            "layers are split over ranks that all train",
            f"{communicator.servers} servers",
            "Start the job without `--servers`",
        ),
        (
            communicator.membership.is_elastic,
            "slices of layers need all of their workers",
            "an elastic job",
            "Start it without `--elastic`",
        ),
        (
            len(optimizers) > 1,
            "a model whose layers are split has one optimizer",
            f"{len(optimizers)}",
            "Train it without `model_parallel`",
        ),
    ):
        if is_so:
            raise ValueError(f"{rule}. Received: {received}. {remedy}")
