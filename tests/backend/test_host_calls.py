"""Calls of Python from graphs."""

import threading

import numpy as np
import tensorflow as tf

from easyscale.backend.tensorflow.host_calls import HostCalls

FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")


def test_calls_are_made_in_the_order_in_which_they_were_traced():
    calls, made = HostCalls(), []

    @tf.function(autograph=False)
    def step():
        for number in range(5):
            calls(lambda _, number=number: made.append(number), [tf.constant(1.0)], [])

    for _ in range(20):
        step()
    assert made == list(range(5)) * 20


def test_results_have_the_shape_that_was_said():
    calls = HostCalls()

    @tf.function(autograph=False)
    def step():
        whole, rows = calls(
            lambda: [np.ones((2, 3), "float32"), np.zeros(4)], [], [((2, 3), FLOAT32), ((None,), FLOAT64)]
        )
        assert (whole.shape, rows.shape.as_list()) == ((2, 3), [None])
        return whole, rows

    whole, rows = step()
    assert whole.numpy().sum() == 6 and rows.shape == (4,)


def test_a_thread_of_tensorflow_is_made_known_to_python_once():
    """A `threading.local` lives as long as what Python knows of the thread."""
    calls, local, fresh, threads = HostCalls(), threading.local(), [], set()

    def look(_):
        threads.add(threading.get_ident())
        fresh.append(not hasattr(local, "seen"))
        local.seen = True

    @tf.function(autograph=False)
    def step():
        calls(look, [tf.constant(1.0)], [])

    for _ in range(100):
        step()
    assert len(fresh) == 100 and sum(fresh) <= len(threads)
