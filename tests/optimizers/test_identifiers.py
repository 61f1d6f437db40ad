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


@pytest.mark.parametrize("name", ["lamb", "Lamb", "scheduleFreeAdamW"])
def test_each_name_that_an_error_lists_is_taken(name):
    assert type(easyscale.optimizers.identifiers.get(name)).__name__.lower() == name.lower()


@pytest.mark.parametrize("name", ["multioptimizer", "lossscaleoptimizer", "optimizer"])
def test_what_needs_others_inside_is_not_listed(name):
    with pytest.raises(ValueError) as error:
        easyscale.optimizers.identifiers.get(name)
    listed, _, received = str(error.value).partition(" or an optimizer. Received: ")
    assert received.startswith(f"inner_optimizer='{name}'") and f"'{name}'" not in listed


@pytest.mark.parametrize("config", [{}, {"class_name": "SGD", "config": {"learning_rte": 0.1}}, {"class_name": "Sdg"}])
def test_what_is_no_configuration_is_refused_in_one_line(config):
    with pytest.raises(ValueError, match=r"^`inner_optimizer` must be what `keras.optimizers.serialize` has returned"):
        easyscale.optimizers.identifiers.get(config)
