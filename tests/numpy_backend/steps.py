"""Training steps of ranks that are threads, and the same steps of one process without EasyScale."""

import itertools
from typing import Any, NamedTuple

import keras
import numpy as np
from toy import Toy, data

import easyscale
from easyscale.communicator import run_ranks
from easyscale.step.agreement import Purpose
from easyscale.step.interfaces import StepContext

__all__ = ["Case", "assert_as_one_process", "one_process", "workers"]

STEPS, SAMPLES = 6, 24  # of a step, over all workers


class Case(NamedTuple):
    """What is trained, and how.

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


def _new_optimizer(case: Case) -> keras.optimizers.Optimizer:
    return getattr(keras.optimizers, case.optimizer)(**{"learning_rate": 0.1, **case.options})


def _batches(case: Case) -> list[list[tuple]]:
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


def _model(case: Case) -> Toy:
    keras.config.set_floatx("float64")  # of learning rates and norms: two ways of one sum differ by 1e-16
    return Toy(case.dtype, case.sparse, case.tied, case.mixed)


def one_process(case: Case) -> list[np.ndarray]:
    """Return weights and optimizer state after the steps of stock Keras on the batches of all workers."""
    model, optimizer = _model(case), _new_optimizer(case)
    optimizer.build(model.trained)
    for parts in _batches(case):
        gradients = model.gradients(*map(np.concatenate, zip(*parts, strict=True)))
        optimizer.apply([getattr(one, "whole", lambda one=one: one)() for one in gradients], model.trained)
    return [*model.values(), *(np.array(variable.value) for variable in optimizer.variables)]


def workers(case: Case) -> list[list[np.ndarray]]:
    """Return, for each worker, its weights and optimizer state after the steps."""
    ranks = case.size + case.servers
    return run_ranks(ranks, lambda comm: _on_rank(comm, case), nodes=case.nodes, servers=case.servers)[: case.size]


class _Iterator:
    def __init__(self, batches):
        self._batches = batches

    def peek(self):
        return self._batches[0]


def _on_rank(comm: easyscale.communicator.Communicator, case: Case) -> list[np.ndarray]:
    model, of_steps = _model(case), _batches(case)
    how = {"exchange": case.exchange, "update": case.update, "compression": case.compression}
    optimizer = easyscale.DistributedOptimizer(
        _new_optimizer(case), bucket_bytes=case.bucket_bytes, communicator=comm, **how
    )
    if comm.rank % 2:
        model.trained[1].assign(np.zeros(model.trained[1].shape))  # the chief's count
    optimizer.build(model.trained)
    replication = optimizer.workers
    replication.replicas.start_equal([*model.trained, *model.moving])
    optimizer.starts_equal = False
    optimizer.shard()
    replication.steps.begin(0, together=True)

    def step(batch):
        x, y = batch
        if optimizer.late is not None:
            optimizer.late.receive()
        known = [np.asarray(x, "float64").reshape(-1), y.reshape(-1)]
        context = StepContext(len(x), known, model.moving, late=optimizer.late)
        with replication.current_step.of(context):
            optimizer.apply(model.gradients(x, y), model.trained)

    if comm.is_server:
        replication.replicas.rehearse(step, _Iterator(of_steps[0]), [*model.trained, *model.moving])
    else:
        for parts in of_steps:
            if comm.rank < len(parts):
                step(parts[comm.rank])
    if optimizer.late is not None:
        optimizer.late.settle()
    while (agreed := replication.steps.meet(Purpose.END)).purpose != Purpose.END:
        assert optimizer.join(agreed)
    optimizer.unshard(complete=True)
    return [*model.values(), *(np.array(variable.value) for variable in optimizer.inner_optimizer.variables)]


def assert_as_one_process(case: Case, rtol: float = 1e-11, atol: float = 1e-12) -> None:
    """Raise `AssertionError` unless all workers have the same bits, and those of one process but for rounding."""
    alone, (chief, *others) = one_process(case), workers(case)
    for other in others:
        for mine, its in zip(chief, other, strict=True):
            np.testing.assert_array_equal(mine, its)
    for expected, value in zip(alone, chief, strict=True):
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=atol)
