"""Models that `easyscale bench` trains, the usual ones of papers on distributed training, and random data for them.

Models are not pretrained. Some are from `keras.applications`; the others are implemented here from their papers.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from easyscale.bench import sequences as sequences
from easyscale.bench.images import alexnet, cifar10, googlenet

__all__ = ["ZOO", "Entry"]


class Entry(NamedTuple):
    """A model of the zoo.

    Attributes:
        make: Callable. Takes the image size and the number of classes, which some models ignore; returns a model that
            outputs logits.
        classes: Int. Number of classes in the paper.
        loss: Callable. Returns a loss.
        labels: Callable. Takes a model, a number of samples and a random generator; returns the labels.
        most: Int. Exclusive upper bound of integer inputs. Defaults to `None`: inputs are real numbers.
    """

    make: Callable[[int, int], keras.Model]
    classes: int
    loss: Callable[[], keras.losses.Loss]
    labels: Callable[[keras.Model, int, np.random.Generator], np.ndarray]
    most: int | None = None

    def data(self, model: keras.Model, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return `count` random samples and their labels."""
        shape = count, *model.input_shape[1:]
        if self.most is None:
            return generator.standard_normal(shape, "float32"), self.labels(model, count, generator)
        return generator.integers(0, self.most, shape), self.labels(model, count, generator)


def _cross_entropy() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _class(model: keras.Model, count: int, generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, model.output_shape[-1], count)


def _classifier(make: Callable[[int, int], keras.Model], classes: int = 1000) -> Entry:
    return Entry(make, classes, _cross_entropy, _class)


def _of_keras(name: str) -> Entry:
    def make(image_size: int, classes: int) -> keras.Model:
        model = getattr(keras.applications, name)
        shape = (image_size, image_size, 3)
        return model(weights=None, input_shape=shape, classes=classes, classifier_activation=None)

    return _classifier(make)


def _mlp(image_size: int, classes: int) -> keras.Model:
    units = [keras.layers.Dense(count, activation="relu") for count in (4096, 4096, 1024)]
    return keras.Sequential([keras.Input((784,)), *units, keras.layers.Dense(classes)])


ZOO = {
    "alexnet": _classifier(alexnet),
    "cifar10": _classifier(cifar10, 10),
    "deepspeech2": Entry(sequences.deepspeech2, sequences.LETTERS, keras.losses.CTC, sequences.letters),
    "efficientnetb0": _of_keras("EfficientNetB0"),
    "googlenet": _classifier(googlenet),
    "inceptionv3": _of_keras("InceptionV3"),
    "mlp": _classifier(_mlp, 10),
    "mobilenetv2": _of_keras("MobileNetV2"),
    "resnet50": _of_keras("ResNet50"),
    "transformer": Entry(sequences.transformer, sequences.WORDS, _cross_entropy, sequences.words, sequences.WORDS),
    "vgg16": _of_keras("VGG16"),
}
