"""The choice of a `fit()`'s update."""

import keras

from easyscale.exchange import Exchange
from easyscale.layout.specs import specs_of
from easyscale.step.gradients import Gradients
from easyscale.update.asked import Kind
from easyscale.update.base import Update
from easyscale.update.divided import DividedUpdate
from easyscale.update.element_wise import is_of_keras
from easyscale.update.local_steps import LocalSteps
from easyscale.update.replicated import ReplicatedUpdate
from easyscale.update.served import ServedUpdate
from easyscale.update.sharded import ShardedUpdate

__all__ = ["check", "check_slices", "choose", "kind_for"]

# Bytes of weights below which dividing the update costs more, in calls, than it saves. Measured for SGD with momentum.
SHARDED_FROM = 1 << 16


def check(asked: Kind | None, optimizer: keras.optimizers.Optimizer, replication: str) -> None:
    """Raise `ValueError` if an optimizer cannot be used with the requested update.

    Args:
        asked: The result of `asked.get`.
        optimizer: The optimizer.
        replication: String. The kind of replication.
    """
    if asked is None:
        return
    if isinstance(asked, LocalSteps) and replication != "between_graph":
        raise ValueError(
            "the devices of one process step together. Received: "
            f"update={asked!r}, replication='{replication}'. Use several processes"
        )
    _check(asked, optimizer, [])


def kind_for(exchange: Exchange) -> type[Update]:
    """Return the kind of update for an exchange: for asynchronous servers `ServedUpdate`, otherwise any `Update`."""
    return Update if exchange.is_synchronous else ServedUpdate


def choose(
    asked: Kind | None,
    optimizer: keras.optimizers.Optimizer,
    variables: list[keras.Variable],
    gradients: Gradients,
) -> Kind:
    """Return the class or instance that creates a `fit()`'s update.

    Args:
        asked: The result of `asked.get` for the user's `update`.
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        gradients: `Gradients`.

    Raises:
        ValueError: If the optimizer cannot be used as requested, or with asynchronous servers.
    """
    exchange = gradients.exchange
    chosen = _choose(asked, optimizer, variables, gradients)
    if isinstance(chosen, type) and issubclass(chosen, DividedUpdate) and not exchange.is_exact:
        raise ValueError(
            "an update that sends weights needs an exchange that does not round them. Received: "
            f"update='{chosen.name}', exchange='{exchange.name}'. Use `update='replicated'`, or another exchange"
        )
    return chosen


def _choose(
    asked: Kind | None,
    optimizer: keras.optimizers.Optimizer,
    variables: list[keras.Variable],
    gradients: Gradients,
) -> Kind:
    exchange, communicator = gradients.exchange, gradients.communicator
    if kind_for(exchange) is ServedUpdate:
        if communicator.size == 1:
            raise ValueError(
                f"the devices of one process step together. Received: exchange='{exchange.name}'. Use "
                f"'{exchange.name.partition(':')[0]}', or several processes"
            )
        if asked not in (None, ShardedUpdate):
            raise ValueError(
                f"`update` must be 'sharded' or `None` where servers do not wait for all workers. Received: "
                f"update='{asked.name}', exchange='{exchange.name}'. Use 'parameter_server'"
            )
        if reason := ServedUpdate.why_not(optimizer, variables):
            raise ValueError(
                f"servers that do not wait for all workers need {ServedUpdate.needs}. "
                f"Received: exchange='{exchange.name}' and {type(optimizer).__name__}; {reason}. Use 'parameter_server'"
            )
        return ServedUpdate
    if any(gradients.slices.of(variables)) or gradients.groups:
        check_slices(optimizer, variables)
        return ShardedUpdate
    if asked is not None:
        _check(asked, optimizer, variables)
        return asked
    # Weights would be sent back uncompressed, in more bytes than compressed gradients.
    is_compressed = gradients.sums is not None and exchange.travels_by != "memory"
    rounds = is_compressed or not exchange.is_exact
    # In an elastic job, a replicated update needs no retracing when a worker fails, and no state is outdated. A custom
    # optimizer may behave differently on other shapes than those of a trial.
    if communicator.membership.is_elastic or rounds or not is_of_keras(optimizer):
        return ReplicatedUpdate
    is_small = sum(spec.nbytes for spec in specs_of(variables)) < SHARDED_FROM and not communicator.servers
    return ReplicatedUpdate if is_small or ShardedUpdate.why_not(optimizer, variables) else ShardedUpdate


def check_slices(optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> None:
    """Raise `ValueError` if an optimizer cannot train variables that include slices.

    Args:
        optimizer: The optimizer.
        variables: The variables that it trains.
    """
    if reason := ShardedUpdate.why_not(optimizer, variables):
        raise ValueError(
            f"layers that are split need {ShardedUpdate.needs}. Received: {type(optimizer).__name__}; {reason}. "
            "Use another optimizer, or leave `model_parallel` out"
        )


def _check(asked: Kind, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> None:
    if reason := asked.why_not(optimizer, variables):
        raise ValueError(
            f"`update='{asked.name}'` needs {asked.needs}. Received: {type(optimizer).__name__}; {reason}. "
            "Use `update='replicated'`"
        )
