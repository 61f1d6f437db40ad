"""Which update a `fit()` uses, and why."""

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

# Bytes of weights, below which dividing an update costs more, in calls, than it saves. Measured for SGD with momentum.
SHARDED_FROM = 1 << 16


def check(asked: Kind | None, optimizer: keras.optimizers.Optimizer, replication: str) -> None:
    """Raise `ValueError` if an optimizer cannot be used by the update that is asked for.

    Args:
        asked: What `asked.get` has returned.
        optimizer: The optimizer.
        replication: String. How replicas exist side by side.
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
    """Return which updates an exchange is for: that of servers, if its own wait for nobody, or any that waits."""
    return Update if exchange.is_synchronous else ServedUpdate


def choose(
    asked: Kind | None,
    optimizer: keras.optimizers.Optimizer,
    variables: list[keras.Variable],
    gradients: Gradients,
) -> Kind:
    """Return what makes the update that a `fit()` uses.

    Args:
        asked: What `asked.get` has returned of what the user has said.
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        gradients: `Gradients`: all workers, as one of them sees them.

    Raises:
        ValueError: If the optimizer cannot be used as it was asked for, or by servers that do not wait.
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
    # Weights would come back as they are, in more bytes than gradients that travel in another form.
    is_compressed = gradients.sums is not None and exchange.travels_by != "memory"
    rounds = is_compressed or not exchange.is_exact
    # In an elastic job nothing has to be traced anew when a worker fails, and no state is older. What an optimizer that
    # is not Keras's own does on other shapes than those of a trial is not known.
    if communicator.membership.is_elastic or rounds or not is_of_keras(optimizer):
        return ReplicatedUpdate
    is_small = sum(spec.nbytes for spec in specs_of(variables)) < SHARDED_FROM and not communicator.servers
    return ReplicatedUpdate if is_small or ShardedUpdate.why_not(optimizer, variables) else ShardedUpdate


def check_slices(optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> None:
    """Raise `ValueError` if an optimizer cannot train variables some of which are slices.

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
