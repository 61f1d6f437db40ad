"""A model in NumPy that knows its own gradients."""

import keras
import numpy as np

from easyscale.backend.numpy.backend import Rows

__all__ = ["Toy", "data"]

WORDS, WIDTH, UNITS, OUTPUTS = 11, 6, 5, 3


class Toy:
    """Embeds words, averages them, and maps them through a hidden layer:

        h = mean_k E[x_k]        z = tanh(h W + b)        out = z V        loss = mean over samples of |out - y|^2 / 2

    Args:
        dtype: String. That of all weights.
        sparse: Bool. Whether the gradient by `E` is some of its rows.
        tied: Bool. Whether `V` is `U E^T`, so that `E` is used twice and has one gradient.
        mixed: Bool. Whether the bias has another dtype.

    Attributes:
        trained: List of variables.
        moving: List of one variable that is not trained: a moving mean of `h`.
    """

    def __init__(self, dtype="float64", sparse=False, tied=False, mixed=False):
        generator = np.random.default_rng(7)
        self.sparse, self.tied = sparse and not tied, tied

        def weight(name, *shape, dtype=dtype):
            return keras.Variable(generator.normal(scale=0.5, size=shape).astype(dtype), dtype=dtype, name=name)

        self.embedding, self.kernel = weight("embedding", WORDS, WIDTH), weight("kernel", WIDTH, UNITS)
        self.bias = weight("bias", UNITS, dtype="float32" if mixed else dtype)
        self.out = weight("out", UNITS, WIDTH if tied else OUTPUTS)
        self.trained = [self.embedding, self.kernel, self.bias, self.out]
        self.moving = [keras.Variable(np.zeros(WIDTH, dtype), dtype=dtype, trainable=False, name="moving_mean")]

    def gradients(self, x, y):
        """Return the gradients by `trained`, of the mean over these samples, and move the moving mean.

        Args:
            x: Array of int64 with a row of words for each sample.
            y: Array with a row for each sample, of `OUTPUTS` numbers, or of `WORDS` if the weights are tied.
        """
        embedding, kernel, bias, out = (np.array(variable.value) for variable in self.trained)
        count = max(len(x), 1)
        h = embedding[x].mean(axis=1)
        z = np.tanh(h @ kernel + bias)
        matrix = out @ embedding.T if self.tied else out
        error = (z @ matrix - y) / count
        by_matrix = z.T @ error
        by_z = error @ matrix.T * (1 - z**2)
        by_h = np.repeat((by_z @ kernel.T / x.shape[1])[:, None], x.shape[1], axis=1)
        by_embedding = Rows(by_h.reshape(-1, WIDTH).astype(embedding.dtype), x.reshape(-1), embedding.shape)
        if self.tied:
            by_embedding, by_out = by_embedding.whole() + by_matrix.T @ out, by_matrix @ embedding
        else:
            by_embedding, by_out = by_embedding if self.sparse else by_embedding.whole(), by_matrix
        if len(x):
            self.moving[0].assign(0.9 * self.moving[0].value + 0.1 * h.mean(axis=0))
        gradients = [by_embedding, h.T @ by_z, by_z.sum(axis=0), by_out]
        return [g if isinstance(g, Rows) else g.astype(v.dtype) for g, v in zip(gradients, self.trained, strict=True)]

    def values(self):
        """Return copies of all weights."""
        return [np.array(variable.value) for variable in (*self.trained, *self.moving)]


def data(samples, tied=False):
    """Return words and targets of so many samples, the same each time."""
    generator = np.random.default_rng(samples)
    x = generator.integers(0, WORDS, size=(samples, 2))
    return x, generator.normal(size=(samples, WORDS if tied else OUTPUTS))
