"""The step that is being traced, which each thread has for itself."""

import threading

import pytest

from easyscale.step.context import CurrentStep, StepContext


def test_outside_of_a_step_a_gradient_has_the_weight_of_one_sample():
    assert CurrentStep().context == StepContext(weight=1.0, data=(), moving=(), losses=(), late=None)
    assert CurrentStep(weight=0.0).context == StepContext(weight=0.0)


def test_a_step_ends_also_by_an_exception():
    step = CurrentStep()
    with pytest.raises(KeyError), step.of(StepContext(weight=8)):
        assert step.context.weight == 8
        raise KeyError
    assert step.context.weight == 1.0


def test_replicas_that_are_traced_in_threads_have_a_step_each():
    step, seen, met = CurrentStep(), {}, threading.Barrier(2, timeout=10)

    def trace(weight):
        with step.of(StepContext(weight=weight)):
            met.wait()  # both are inside
            seen[weight] = step.context.weight
            met.wait()

    threads = [threading.Thread(target=trace, args=[weight]) for weight in (3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert seen == {3: 3, 5: 5}
    assert step.context.weight == 1.0


def test_two_optimizers_have_a_step_each():
    one, other = CurrentStep(), CurrentStep()
    with one.of(StepContext(weight=2)):
        assert (one.context.weight, other.context.weight) == (2, 1.0)
