"""Sizes and costs of the benchmark models, without Keras. `easyscale.bench.models` builds the models."""

from typing import NamedTuple

__all__ = ["MODELS", "OPTIMIZERS", "Model"]


class Model(NamedTuple):
    """Size and cost of a model.

    Attributes:
        weights: Int. Number of trainable parameters, at the paper's image size.
        multiply_adds: Float. Millions of multiply-adds in a forward pass of one sample, at that size.
        image_size: Int. The paper's image size in pixels. Defaults to `None`: the model does not take images.
        smallest: Int. The smallest image size that the model accepts. Defaults to `None`.
    """

    weights: int
    multiply_adds: float
    image_size: int | None = None
    smallest: int | None = None


MODELS = {
    "alexnet": Model(61_100_840, 714.2, 224, 63),
    "cifar10": Model(145_578, 12.4, 32, 1),
    "deepspeech2": Model(4_250_621, 950.8),
    "efficientnetb0": Model(5_288_548, 385.8, 224, 32),
    "googlenet": Model(6_998_552, 1582.7, 224, 1),
    "inceptionv3": Model(23_817_352, 5713.2, 299, 75),
    "mlp": Model(24_202_250, 24.2),
    "mobilenetv2": Model(3_504_872, 300.8, 224, 32),
    "resnet50": Model(25_583_592, 3858.0, 224, 32),
    "transformer": Model(3_688_936, 226.1),
    "vgg16": Model(138_357_544, 15470.3, 224, 32),
}

# Names that `compile()` accepts, and two that only benchmarks accept: `lars`, and `momentum` for SGD with momentum.
OPTIMIZERS = [
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lars", "lion", "momentum", "muon",
    "nadam", "rmsprop", "sgd",
]  # fmt: skip
