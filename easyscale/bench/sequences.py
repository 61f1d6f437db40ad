"""Sequence models for speech and text, small enough to train on a laptop."""

import keras
import numpy as np
from keras import layers

__all__ = ["LETTERS", "WORDS", "deepspeech2", "letters", "transformer", "words"]

FRAMES, FREQUENCIES, LETTERS = 128, 161, 29  # 29: a blank, 26 letters, space and apostrophe
SAID = 16  # letters in a sample's transcript
WORDS, LENGTH, WIDTH, HEADS, BLOCKS = 1000, 64, 256, 4, 4


def deepspeech2(image_size: int, classes: int) -> keras.Model:
    """A small Deep Speech 2 for speech of 128 frames: 4.3 million weights.

    Two convolutions over time and frequency, three bidirectional GRUs, and a CTC loss over letters.

    Reference: Amodei et al., "Deep Speech 2: end-to-end speech recognition in English and Mandarin", 2015.
    """
    inputs = keras.Input((FRAMES, FREQUENCIES))
    x = layers.Reshape((FRAMES, FREQUENCIES, 1))(inputs)
    for kernel, strides in (((11, 41), (2, 2)), ((11, 21), (1, 2))):
        x = layers.Conv2D(32, kernel, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Reshape((x.shape[1], x.shape[2] * x.shape[3]))(x)
    for _ in range(3):
        x = layers.Bidirectional(layers.GRU(256, return_sequences=True), merge_mode="sum")(x)
        x = layers.BatchNormalization()(x)
    return keras.Model(inputs, layers.Dense(classes)(x), name="deepspeech2")


def letters(model: keras.Model, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return random transcripts, without the CTC blank, 0."""
    return generator.integers(1, LETTERS, (count, SAID)).astype("int32")


@keras.saving.register_keras_serializable(package="easyscale")
class Positions(layers.Layer):
    """Adds a learned embedding of each position in a sequence."""

    def build(self, shape: tuple) -> None:
        self.embeddings = self.add_weight(shape=shape[1:], initializer="uniform", name="embeddings")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x + self.embeddings


def transformer(image_size: int, classes: int) -> keras.Model:
    """A small language model that predicts the next word at each of 64 positions: 3.7 million weights.

    Reference: Vaswani et al., "Attention is all you need", 2017; decoder only, with pre-layer normalization.
    """
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(WORDS, WIDTH)(inputs))
    for _ in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(y)
    return keras.Model(inputs, layers.Dense(classes)(layers.LayerNormalization()(x)), name="transformer")


def words(model: keras.Model, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return random next words, one for each position."""
    return generator.integers(0, WORDS, (count, LENGTH))
