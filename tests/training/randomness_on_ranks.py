"""Dropout and augmentation differ between ranks, and follow from one seed; initial weights do not differ."""

import keras
import numpy as np
from models import assert_equal_ranks, digits

import easyscale
from easyscale.callbacks import Distribute

comm = easyscale.communicator.get()


class Noted(keras.layers.Layer):
    """Keeps what it last saw in training."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(8, *shape[1:]), trainable=False, name="seen")

    def call(self, x, training=False):
        if training:
            self.seen.assign(keras.ops.cast(x, self.seen.dtype))
        return x


def _train(seed, fits=1):
    """Masks of a dropout and an augmentation that all ranks see with the same images; and the initial weights."""
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((8, 8, 1)), keras.layers.RandomTranslation(0.5, 0.5), Noted(name="moved")]
    layers += [keras.layers.Flatten(), keras.layers.Dense(4), keras.layers.Activation("sigmoid")]
    layers += [keras.layers.Dropout(0.5), Noted(name="dropped"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    initial = [weight.copy() for weight in model.get_weights()]
    model.compile(keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = digits(8)
    seen = []

    class Looks(keras.callbacks.Callback):
        """At the end of an epoch all ranks get what the chief's layers have noted."""

        def on_train_batch_end(self, batch, logs=None):
            getattr(model, "jax_state_sync", lambda: None)()  # of one process, Keras on JAX has the values elsewhere
            seen[:] = [
                np.array(keras.ops.convert_to_numpy(model.get_layer(name).seen)) for name in ("moved", "dropped")
            ]

    for _ in range(fits):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[Distribute(), Looks()])
    return [seen[0], seen[1] > 0], initial


def _everyones(array):
    return comm.all_gather_rows(np.ascontiguousarray(array))


def check_random_layers_differ_between_ranks_and_come_again_with_the_seed():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", easyscale.EasyScaleWarning)  # all ranks have the same data here
        first, initial = _train(seed=1)
        again, _ = _train(seed=1)
        other, _ = _train(seed=2 if easyscale.is_chief() else 1)
        chiefs_alone, _ = _train(seed=1 if easyscale.is_chief() else 7)
        later, _ = _train(seed=1, fits=2)
    assert_equal_ranks(initial)
    for mine, same, different, same_as_chief, next_fit in zip(first, again, other, chiefs_alone, later, strict=True):
        rows = _everyones(mine)
        for rank in range(1, comm.size):
            assert (rows[rank] != rows[rank - 1]).any(), f"ranks {rank - 1} and {rank} drew the same numbers"
        np.testing.assert_array_equal(mine, same)
        assert (mine != different).any(), "the chief's seed makes no difference"
        np.testing.assert_array_equal(mine, same_as_chief)
        assert (mine != next_fit).any(), "a second fit() draws the numbers of the first again"
