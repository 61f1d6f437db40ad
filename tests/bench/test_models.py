"""The zoo's models: as large as their papers say, and as `cli/bench/models.py` knows them; all can be trained."""

import functools
import inspect

import keras
import numpy as np
import pytest

from easyscale.bench import fit as bench_fit
from easyscale.bench.models import ZOO
from easyscale.cli.bench.models import MODELS, OPTIMIZERS

PAPERS = {
    "alexnet": (61e6, 62e6),
    "googlenet": (6.6e6, 7.0e6),
    "inceptionv3": (23.8e6, 23.9e6),
    "vgg16": (138e6, 138.5e6),
    "resnet50": (25.5e6, 25.65e6),
    "cifar10": (145_578, 145_578),
}


@pytest.fixture(scope="module")
def made():
    return functools.cache(lambda name: ZOO[name].make(MODELS[name].image_size or 0, ZOO[name].classes))


@pytest.mark.full
@pytest.mark.parametrize("name", PAPERS)
def test_a_model_has_as_many_weights_as_the_paper_says(made, name):
    least, most = PAPERS[name]
    assert least <= made(name).count_params() <= most


def test_commands_know_the_models_of_the_zoo():
    assert list(MODELS) == list(ZOO) == sorted(ZOO)


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_commands_know_how_large_a_model_is_and_how_much_it_computes(made, name):
    model = made(name)
    assert MODELS[name].weights == sum(np.prod(weight.shape) for weight in model.trainable_weights)
    assert (MODELS[name].image_size is None) == (len(model.input_shape) != 4)
    if name in ("deepspeech2", "efficientnetb0", "mobilenetv2", "transformer"):
        return  # what they do beside Conv2D and Dense counts as well
    total = 0
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.Conv2D | keras.layers.Dense):
            total += np.prod(layer.output.shape[1:-1], initial=1) * np.prod(layer.kernel.shape)
    assert total / 1e6 == pytest.approx(MODELS[name].multiply_adds, rel=0.005)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in MODELS if (MODELS[name].smallest or 0) > 1])
def test_commands_know_the_smallest_image(name):
    with pytest.raises(ValueError):
        ZOO[name].make(MODELS[name].smallest - 1, 10)
    if name != "efficientnetb0":  # which takes seconds to build
        ZOO[name].make(MODELS[name].smallest, 10)


@pytest.mark.full
@pytest.mark.parametrize("name", ["alexnet", "cifar10", "deepspeech2", "googlenet", "transformer"])
def test_what_is_written_down_here_has_a_loss_of_its_data(name):
    model = bench_fit.build(name, "momentum", MODELS[name].smallest or 0)
    x, y = ZOO[name].data(model, 2, np.random.default_rng(0))
    loss = ZOO[name].loss()(y, model(x, training=True))
    assert np.isfinite(float(loss)) and float(loss) > 1


def test_commands_know_the_names_of_optimizers():
    found = {name.lower() for name, kind in vars(keras.optimizers).items() if inspect.isclass(kind)}
    assert set(OPTIMIZERS) - {"lars", "momentum"} <= found
    for name, kind in (("lars", "LARS"), ("momentum", "SGD"), ("adam", "Adam")):
        assert type(bench_fit.build("cifar10", name, 8).optimizer).__name__ == kind
