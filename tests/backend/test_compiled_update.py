"""The update of weights as a graph of its own."""

import numpy as np
import pytest
import tensorflow as tf

from easyscale import communicator
from easyscale.backend.tensorflow import compiled_update
from easyscale.backend.tensorflow.compiled_update import CompiledUpdate


@pytest.mark.parametrize("compiles", [False, True])
def test_an_update_is_traced_once_until_it_is_forgotten(compiles, monkeypatch):
    monkeypatch.setattr(compiled_update, "XLA_FROM", 2)
    update, traced = CompiledUpdate(communicator.get("local"), has_copies=False), []
    variable, untouched = tf.Variable([1.0, 2.0]), tf.Variable([5.0])

    def apply(gradients, variables):
        traced.append(len(variables))
        for gradient, one in zip(gradients, variables, strict=True):
            if gradient is not None:
                one.assign_sub(gradient)

    def step():
        update(apply, [tf.constant([1.0, 1.0]), None], [variable, untouched], compiles)

    step(), step()
    assert traced == ([1] if compiles else [2, 2])  # one process needs no graph but to compile it
    update.forget()
    step()
    assert traced == ([1, 1] if compiles else [2, 2, 2])
    np.testing.assert_allclose(variable.numpy(), [-2.0, -1.0])
    np.testing.assert_allclose(untouched.numpy(), [5.0])


def test_what_is_applied_is_traced_by_itself_also_to_the_same_variables(monkeypatch):
    monkeypatch.setattr(compiled_update, "XLA_FROM", 0)
    update, variable = CompiledUpdate(communicator.get("local"), has_copies=False), tf.Variable([5.0])
    for factor, left in ((-1.0, 4.0), (1.0, 5.0)):
        update(
            lambda given, own, factor=factor: own[0].assign_add(factor * given[0]),
            [tf.constant([1.0])],
            [variable],
            compiles=True,
        )
        assert variable.numpy() == left


def test_few_elements_are_not_compiled():
    update, traced = CompiledUpdate(communicator.get("local"), has_copies=False), []
    for length, graphs in ((compiled_update.XLA_FROM // 2 - 1, 0), (compiled_update.XLA_FROM // 2, 1)):
        pair = [tf.Variable(tf.zeros(length)) for _ in range(2)]

        def apply(gradients, _):
            traced.append(gradients)

        for _ in range(2):
            update(apply, [tf.zeros(length)] * 2, pair, compiles=True)
        assert (
            sum(isinstance(gradients[0], tf.Tensor) and tf.is_symbolic_tensor(gradients[0]) for gradients in traced)
            == graphs
        )


def test_rows_are_not_compiled(monkeypatch):
    monkeypatch.setattr(compiled_update, "XLA_FROM", 0)
    update, variable = CompiledUpdate(communicator.get("local"), has_copies=False), tf.Variable([[1.0], [2.0]])
    seen = []
    rows = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1]), tf.constant([2, 1]))
    update(lambda gradients, _: seen.append(gradients), [rows], [variable], compiles=True)
    assert seen == [[rows]]
