"""Optimizers by what users write for them."""

import keras
import pytest

import easyscale


@pytest.mark.parametrize("identifier", ["sgd", {"class_name": "SGD", "config": {}}, keras.optimizers.SGD()])
def test_an_optimizer_is_found_as_keras_finds_it(identifier):
    assert isinstance(easyscale.DistributedOptimizer(identifier).inner_optimizer, keras.optimizers.SGD)


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(
        ValueError, match=r"^`inner_optimizer` must be one of \['adadelta', .*'sgdd'. Did you mean 'sgd'\?$"
    ):
        easyscale.DistributedOptimizer("sgdd")


@pytest.mark.parametrize("identifier", [None, 0.1, keras.optimizers.SGD])
def test_what_is_no_optimizer_is_refused(identifier):
    with pytest.raises(
        TypeError, match=r"^`inner_optimizer` must be an optimizer of Keras's, or its name\. Received: "
    ):
        easyscale.DistributedOptimizer(identifier)
