"""Whole runs: several optimizers, hyperparameters that change, a second fit, ranks that disagree."""

import numpy as np
import pytest
from steps import Case, Training, batches_of, model_of, on_ranks, one_process, optimizer_of, workers

from easyscale.errors import DesyncError

ADAM = Case(3, "Adam")
CHANGES = [("learning_rate", 0.01), ("weight_decay", 0.5), ("beta_1", 0.5), ("clipvalue", 0.01)]
FACTORS = 1, 1, np.inf, 1  # of which one is a bias's


def _begun(comm, case, change=None):
    """Start a run whose every step uses `change(gradients)` instead of its gradients."""
    training = Training(comm, case)
    training.begin()
    model = training.models[0]
    gradients = model.gradients
    if change is not None:
        model.gradients = lambda x, y: change(gradients(x, y))
    return training


@pytest.mark.parametrize("division", ["uneven", "ends early"])
@pytest.mark.parametrize("update", ["replicated", "sharded"])
@pytest.mark.parametrize("bucket_bytes", [None, 200])
def test_two_optimizers_in_one_step_train_two_models(division, update, bucket_bytes):
    case = ADAM._replace(division=division, update=update, bucket_bytes=bucket_bytes)
    alone, (chief, *others) = one_process(case), workers(case, models=2)
    weights = len(model_of(case).values())
    for values in (chief, *others):
        both = values[:weights], values[weights : 2 * weights]
        for one, other, expected in zip(*both, alone[:weights], strict=True):
            np.testing.assert_array_equal(one, other)
            np.testing.assert_allclose(one, expected, 1e-10, 1e-11)


@pytest.mark.parametrize("update", ["replicated", "sharded"])
@pytest.mark.parametrize(
    "change", [("learning_rate", 0.01), ("weight_decay", 0.5), ("beta_1", 0.5), ("clipvalue", 0.01)]
)
def test_a_hyperparameter_that_is_set_between_steps_counts_from_then_on(update, change):
    case = Case(3, "AdamW", {"weight_decay": 0.1, "clipvalue": 1.0}, update=update, division="uneven")

    def on_rank(comm):
        training = Training(comm, case)
        training.begin()
        for number, parts in enumerate(batches_of(case)):
            if number == 3:
                setattr(training.optimizers[0], *change)
            training.step(parts[comm.rank])
        training.end()
        return training.values()

    model, optimizer = model_of(case), optimizer_of(case)
    optimizer.build(model.trained)
    for number, parts in enumerate(batches_of(case)):
        if number == 3:
            setattr(optimizer, *change)
        optimizer.apply(model.gradients(*map(np.concatenate, zip(*parts, strict=True))), model.trained)
    for values in on_ranks(case, on_rank):
        for value, expected in zip(values, model.values(), strict=False):
            np.testing.assert_allclose(value, expected, 1e-10, 1e-11)


@pytest.mark.parametrize("update", ["replicated", "sharded"])
def test_a_second_fit_goes_on_with_the_state_of_the_first(update):
    case = ADAM._replace(update=update)

    def on_rank(comm):
        training, of_steps = Training(comm, case), batches_of(case)
        for begin in (0, 3):
            training.begin()
            for parts in of_steps[begin : begin + 3]:
                training.step(parts[comm.rank])
            training.end()
        return training.values()

    for values in on_ranks(case, on_rank):
        for value, expected in zip(values, one_process(case), strict=True):
            np.testing.assert_allclose(value, expected, 1e-10, 1e-11)


@pytest.mark.parametrize("update", ["replicated", "sharded"])
def test_weights_without_gradients_stay_as_they_are(update):
    case = Case(2, "SGD", update=update)

    def on_rank(comm):
        training = _begun(comm, case, lambda gradients: [gradients[0], None, *gradients[2:]])
        model = training.models[0]
        before = np.array(model.kernel.value)
        for parts in batches_of(case):
            training.step(parts[comm.rank])
        training.end()
        return before, np.array(model.kernel.value), np.array(model.out.value)

    (before, kernel, out), (_, _, other) = on_ranks(case, on_rank)
    np.testing.assert_array_equal(before, kernel)
    np.testing.assert_array_equal(out, other)
    assert np.abs(out - model_of(case).values()[3]).max() > 1e-3


@pytest.mark.parametrize("update", ["replicated", "sharded"])
def test_ranks_whose_gradients_differ_are_told_so(update):
    case = Case(3, "SGD", update=update)

    def on_rank(comm):
        training = _begun(comm, case, (lambda gradients: [*gradients[:3], None]) if comm.rank == 2 else None)
        try:
            training.step(batches_of(case)[0][comm.rank])
        except DesyncError as error:
            return str(error)

    for said in on_ranks(case, on_rank):
        assert said is not None and "rank 2" in said, said


@pytest.mark.parametrize("update", ["replicated", "sharded"])
def test_a_gradient_that_is_not_finite_on_one_rank_makes_the_same_weights_on_all(update):
    case = Case(3, "SGD", update=update)

    def on_rank(comm):
        training = _begun(comm, case)
        model = training.models[0]
        gradients = model.gradients
        if comm.rank == 1:
            model.gradients = lambda x, y: [
                one * (np.inf if index == 2 else 1) for index, one in enumerate(gradients(x, y))
            ]
        training.step(batches_of(case)[0][comm.rank])
        training.end()
        return training.values()

    chief, *others = on_ranks(case, on_rank)
    assert not np.isfinite(chief[2]).any() and np.isfinite(chief[1]).all()
    for other in others:
        for mine, its in zip(chief, other, strict=True):
            np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize(("exchange", "update"), [("ring", "replicated"), ("ring", "sharded"), ("tree", "replicated")])
def test_a_step_sends_what_its_exchange_costs(size, exchange, update):
    """And 8 bytes a message for the agreement: the rest is the gradients, once there and once back."""
    case = Case(size, "SGD", exchange=exchange, update=update)

    def on_rank(comm):
        training = _begun(comm, case)
        sent = []
        for parts in batches_of(case):
            training.step(parts[comm.rank])
            sent.append((comm.sent.messages, comm.sent.bytes))
        training.end()
        elements = sum(value.size for value in training.models[0].values())
        cost = training.optimizers[0].workers.gradients.exchange.cost(size, 8 * elements)
        return np.diff(sent, axis=0), cost, elements

    found = on_ranks(case, on_rank)
    for steps, _, _ in found:
        assert (steps[1:] == steps[1]).all()  # each step the same
    cost, agreed = found[0][1], 2 * int(np.ceil(np.log2(size))) * 64 * 8
    busiest = max(int(steps[-1][1]) for steps, _, _ in found)
    assert cost.bytes * 0.9 <= busiest <= cost.bytes * 1.15 + agreed, (busiest, cost)
