"""What `Distribute` refuses before anything is trained, each in one line."""

import keras
import numpy as np
import pytest

from easyscale.callbacks import Distribute

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


def model():
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


class OfOnesOwn(Distribute):
    pass


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([Distribute], "`callbacks` must be instances. Received: the class Distribute. Write `Distribute()`"),
        (OfOnesOwn, "`callbacks` must be instances. Received: the class OfOnesOwn. Write `OfOnesOwn()`"),
        (
            [Distribute(), keras.callbacks.History(), OfOnesOwn()],
            "`Distribute` must stand in the list of callbacks once. Received: 2 of them. Leave all but one out",
        ),
    ],
    ids=["a class", "a class alone", "two"],
)
def test_it_must_stand_in_the_list_once_and_as_an_instance(callbacks, message):
    made = model()
    before = made.get_weights()
    with pytest.raises(ValueError) as raised:
        made.fit(X, Y, verbose=0, callbacks=callbacks)
    assert str(raised.value) == message
    for weight, first in zip(made.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, first)


@pytest.mark.parametrize("value", [True, 0, -1, 2.5, "3", None])
def test_how_often_weights_are_compared_is_a_positive_integer(value):
    with pytest.raises(ValueError, match=r"^`check_every` must be a positive integer\. Received: check_every="):
        Distribute(check_every=value)


def test_numbers_of_numpy_are_integers():
    Distribute(check_every=np.int64(3))
