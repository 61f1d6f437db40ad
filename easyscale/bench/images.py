"""Image models that `keras.applications` does not have."""

import keras
from keras import layers

__all__ = ["alexnet", "cifar10", "googlenet"]


def alexnet(image_size: int, classes: int) -> keras.Model:
    """Single-column AlexNet: 61.1 million weights at 224 by 224.

    Without the local response normalization of the original, which has no weights.

    Reference: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.
    """
    blocks = [
        keras.Input((image_size, image_size, 3)),
        layers.ZeroPadding2D(2),
        layers.Conv2D(64, 11, 4, activation="relu"),
        layers.MaxPooling2D(3, 2),
        layers.Conv2D(192, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(3, 2),
        layers.Conv2D(384, 3, padding="same", activation="relu"),
        layers.Conv2D(256, 3, padding="same", activation="relu"),
        layers.Conv2D(256, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(3, 2),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(4096, activation="relu"),
        layers.Dropout(0.5),
        layers.Dense(4096, activation="relu"),
        layers.Dense(classes),
    ]
    return keras.Sequential(blocks, name="alexnet")


# Filters of each Inception module: 1x1; 3x3 reduction, 3x3; 5x5 reduction, 5x5; projection after pooling.
_MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(image_size: int, classes: int) -> keras.Model:
    """GoogLeNet (Inception v1) without its auxiliary heads: 7.0 million weights at any image size.

    Without its local response normalization, which has no weights.

    Reference: Szegedy et al., "Going deeper with convolutions", 2014, table 1.
    """
    inputs = keras.Input((image_size, image_size, 3))
    x = _conv(64, 7, 2)(inputs)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    x = _conv(192, 3)(_conv(64, 1)(x))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for name, (single, before_three, three, before_five, five, pooled) in _MODULES.items():
        if name in ("4a", "5a"):
            x = layers.MaxPooling2D(3, 2, padding="same")(x)
        branches = [
            _conv(single, 1)(x),
            _conv(three, 3)(_conv(before_three, 1)(x)),
            _conv(five, 5)(_conv(before_five, 1)(x)),
            _conv(pooled, 1)(layers.MaxPooling2D(3, 1, padding="same")(x)),
        ]
        x = layers.Concatenate(name=f"inception_{name}")(branches)
    x = layers.Dropout(0.4)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(classes)(x), name="googlenet")


def cifar10(image_size: int, classes: int) -> keras.Model:
    """The quick CIFAR-10 model of cuda-convnet and Caffe: 145,578 weights at 32 by 32.

    Reference: Krizhevsky, cuda-convnet, 2012; `cifar10_quick` in Caffe.
    """
    blocks = [
        keras.Input((image_size, image_size, 3)),
        layers.Conv2D(32, 5, padding="same"),
        layers.MaxPooling2D(3, 2, padding="same"),
        layers.ReLU(),
        layers.Conv2D(32, 5, padding="same", activation="relu"),
        layers.AveragePooling2D(3, 2, padding="same"),
        layers.Conv2D(64, 5, padding="same", activation="relu"),
        layers.AveragePooling2D(3, 2, padding="same"),
        layers.Flatten(),
        layers.Dense(64),
        layers.Dense(classes),
    ]
    return keras.Sequential(blocks, name="cifar10")


def _conv(filters: int, kernel: int, strides: int = 1) -> keras.layers.Layer:
    return layers.Conv2D(filters, kernel, strides, padding="same", activation="relu")
