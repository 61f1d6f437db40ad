"""What a call of Python raises in a graph comes out as it was."""

import numpy as np
import pytest
import tensorflow as tf

from easyscale import backend
from easyscale.step.python_calls import PythonCalls

NUMBER = [((), np.dtype("float64"))]


def fails(number):
    raise LookupError(f"no {int(number)} here")


@pytest.mark.parametrize("run", [lambda function: function(), lambda function: tf.function(function)()])
def test_what_a_call_raises_is_raised_as_it_was(run):
    calls, told = PythonCalls(backend.get()), []
    with pytest.raises(LookupError, match="no 3 here"), calls.explained(lambda: told.append("failed")):
        run(lambda: calls(fails, [tf.constant(3.0, tf.float64)], NUMBER))
    assert told == ["failed"]
    assert isinstance(calls.failure, LookupError)


def test_what_was_raised_before_does_not_explain_what_is_raised_now():
    calls = PythonCalls(backend.get())
    with pytest.raises(LookupError), calls.explained():
        calls(fails, [tf.constant(3.0, tf.float64)], NUMBER)
    with pytest.raises(ValueError, match="of the script"), calls.explained():
        raise ValueError("of the script")


def test_the_end_of_data_is_no_failure():
    calls, told = PythonCalls(backend.get()), []
    with pytest.raises(tf.errors.OutOfRangeError), calls.explained(lambda: told.append("failed")):
        iter(tf.data.Dataset.range(0)).get_next()
    assert told == []
