"""Training steps of ranks that are threads, and the same steps of one process without EasyScale."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from toy import Toy, data

import easyscale
from easyscale.communicator import run_ranks
from easyscale.step.agreement import Purpose
from easyscale.step.context import StepContext

__all__ = [
    "Case",
    "Training",
    "assert_as_one_process",
    "batches_of",
    "model_of",
    "on_ranks",
    "one_process",
    "optimizer_of",
    "workers",
]

STEPS, SAMPLES = 6, 24  # of a step, over all workers


class Case(NamedTuple):
    """One training run: its model, optimizer and workers.

    Attributes:
        size: Int. The number of workers.
        optimizer: String. The class of one of Keras's optimizers.
        options: Dict. Arguments of the optimizer.
        exchange, update, compression, bucket_bytes: See `DistributedOptimizer`.
        division: String. How samples are divided: `"even"`; `"uneven"`: a worker has more than the one before; `"ends
            early"`: the last worker has no data for the last two steps, and the one before it none for the last.
        sparse, tied, mixed, dtype: See `Toy`.
        servers: Int. The number of servers beside the workers.
        nodes: List of the number of ranks of each node, or `None`.
    """

    size: int = 2
    optimizer: str = "SGD"
    options: dict = {}
    exchange: str = "ring"
    update: str | None = None
    compression: Any = None
    bucket_bytes: int | None = None
    division: str = "even"
    sparse: bool = False
    tied: bool = False
    mixed: bool = False
    dtype: str = "float64"
    servers: int = 0
    nodes: Any = None


def optimizer_of(case: Case) -> keras.optimizers.Optimizer:
    return getattr(keras.optimizers, case.optimizer)(**{"learning_rate": 0.1, **case.options})


def batches_of(case: Case) -> list[list[tuple]]:
    """Return, for each step, the samples of each worker that has any."""
    x, y = data(STEPS * SAMPLES, case.tied)
    of_steps = []
    for step in range(STEPS):
        here = slice(step * SAMPLES, (step + 1) * SAMPLES)
        shares = np.arange(case.size) + 1.0 if case.division == "uneven" else np.ones(case.size)
        ends = np.round(np.cumsum(shares) / shares.sum() * SAMPLES).astype(int)
        parts = [(x[here][a:b], y[here][a:b]) for a, b in itertools.pairwise([0, *ends])]
        if case.division == "ends early" and step >= STEPS - 2:
            parts = parts[: max(1, case.size - 1 - (step == STEPS - 1))]
        of_steps.append(parts)
    return of_steps


def model_of(case: Case) -> Toy:
    keras.config.set_floatx("float64")  # of learning rates and norms: two ways of one sum differ by 1e-16
    return Toy(case.dtype, case.sparse, case.tied, case.mixed)


def one_process(case: Case) -> list[np.ndarray]:
    """Return weights and optimizer state after the steps of stock Keras on the batches of all workers."""
    model, optimizer = model_of(case), optimizer_of(case)
    optimizer.build(model.trained)
    for parts in batches_of(case):
        gradients = model.gradients(*map(np.concatenate, zip(*parts, strict=True)))
        optimizer.apply([getattr(one, "whole", lambda one=one: one)() for one in gradients], model.trained)
    return [*model.values(), *(np.array(variable.value) for variable in optimizer.variables)]


def workers(case: Case, models: int = 1) -> list[list[np.ndarray]]:
    """Return, for each worker, its weights and optimizer state after the steps."""
    return on_ranks(case, lambda comm: _on_rank(comm, case, models))[: case.size]


def on_ranks(case: Case, function: Callable) -> list:
    """Return what `function(communicator)` returns on each rank of a case."""
    return run_ranks(case.size + case.servers, function, nodes=case.nodes, servers=case.servers)


class _Iterator:
    def __init__(self, batch: tuple):
        self._batch = batch

    def peek(self) -> tuple:
        return self._batch


class Training:
    """The part of `fit()` that one rank needs around its steps.

    Args:
        comm: The rank's `Communicator`.
        case: `Case`.
        models: Int. How many models are trained in each step, each by an optimizer of its own. Defaults to 1.

    Attributes:
        models: List of `Toy`.
        optimizers: List of `DistributedOptimizer`.
    """

    def __init__(self, comm: easyscale.communicator.Communicator, case: Case, models: int = 1):
        self.models = [model_of(case) for _ in range(models)]
        how = {"exchange": case.exchange, "update": case.update, "compression": case.compression}
        how |= {"bucket_bytes": case.bucket_bytes, "communicator": comm}
        self.optimizers = [easyscale.DistributedOptimizer(optimizer_of(case), **how) for _ in range(models)]

    def begin(self) -> None:
        """Start equal, and divide the state of the optimizers if the update does."""
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            optimizer.build(model.trained)
            optimizer.workers.replicas.start_equal([*model.trained, *model.moving])
            optimizer.starts_equal = False
            optimizer.shard()
        self.optimizers[0].workers.steps.begin(0, together=True)

    def step(self, batch: tuple) -> None:
        """Train all models on a batch of this rank."""
        x, y = batch
        known = [np.asarray(x, "float64").reshape(-1), y.reshape(-1)]
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            if optimizer.late is not None:
                optimizer.late.receive()
            context = StepContext(len(x), known, model.moving, late=optimizer.late)
            with optimizer.workers.current_step.of(context):
                optimizer.apply(model.gradients(x, y), model.trained)

    def rehearse(self, batch: tuple) -> None:
        """Do what a server does before it takes part in the steps of the workers."""
        weights = [weight for model in self.models for weight in (*model.trained, *model.moving)]
        self.optimizers[0].workers.replicas.rehearse(self.step, _Iterator(batch), weights)

    def settle(self) -> None:
        """Wait for the weights that the last step has sent."""
        for optimizer in self.optimizers:
            if optimizer.late is not None:
                optimizer.late.settle()

    def end(self) -> None:
        """Take part in the steps of those who have data left; then make the state of the optimizers whole."""
        self.settle()
        while (agreed := self.optimizers[0].workers.steps.meet(Purpose.END)).purpose != Purpose.END:
            assert any(optimizer.join(agreed) for optimizer in self.optimizers)
        for optimizer in self.optimizers:
            optimizer.unshard(complete=True)

    def values(self) -> list[np.ndarray]:
        """Return copies of all weights, and of all states of the optimizers."""
        states = [variable for optimizer in self.optimizers for variable in optimizer.inner_optimizer.variables]
        weights = [value for model in self.models for value in model.values()]
        return [*weights, *(np.array(state.value) for state in states)]


def _on_rank(comm: easyscale.communicator.Communicator, case: Case, models: int) -> list[np.ndarray]:
    training, of_steps = Training(comm, case, models), batches_of(case)
    if comm.rank % 2:
        training.models[0].trained[1].assign(np.zeros(training.models[0].trained[1].shape))  # the chief's count
    training.begin()
    if comm.is_server:
        training.rehearse(of_steps[0][0])
    else:
        for parts in of_steps:
            if comm.rank < len(parts):
                training.step(parts[comm.rank])
    training.end()
    return training.values()


def assert_as_one_process(case: Case, rtol: float = 1e-11, atol: float = 1e-12) -> None:
    """Raise `AssertionError` unless all workers have the same bits, and those of one process but for rounding."""
    alone, (chief, *others) = one_process(case), workers(case)
    for other in others:
        for mine, its in zip(chief, other, strict=True):
            np.testing.assert_array_equal(mine, its)
    for expected, value in zip(alone, chief, strict=True):
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=atol)
