"""A last layer that is split by its vocabulary trains as on one process, though its logits are never whole."""

import tempfile
from pathlib import Path

import keras
import numpy as np
from counts import Counts
from covering import full
from split_on_ranks import adam, classifier, equal, largest_difference, sgd

import easyscale
from easyscale.callbacks import Distribute
from easyscale.parallel import Split
from easyscale.parallel.split.kinds import CallShapes
from easyscale.parallel.split.kinds.vocabulary import Vocabulary

comm = easyscale.communicator.get()
LOGITS = {"logits": "vocabulary"}


def texts(count=49, length=5, words=23):
    """Words, and the next word of each; with a batch of 24 the last one has one sample."""
    text = np.random.default_rng(3).integers(0, words, (count, length + 1))
    return text[:, :-1], text[:, 1:]


def net(activation=None, mask_zero=False, use_bias=True, length=None):
    """23 words are no multiple of 2, 3 or 4."""

    def build():
        word = keras.Input((length,), dtype="int32")
        x = keras.layers.Embedding(23, 8, mask_zero=mask_zero, name="embedding")(word)
        x = x + keras.layers.MultiHeadAttention(4, 3, name="attention")(x, x, use_causal_mask=True)
        last = keras.layers.Dense(23, activation=activation, use_bias=use_bias, name="logits")
        return keras.Model(word, last(x))

    return build


@full
def check_the_cross_entropy_of_logits_and_accuracy():
    optimizers = (lambda: sgd(clipnorm=0.1), lambda: adam(global_clipnorm=0.2))
    return max(equal(classifier(optimizer, net()), texts(), LOGITS, validates=True) for optimizer in optimizers)


@full
def check_the_cross_entropy_of_softmax_and_weighted_classes():
    x, y = texts()
    build = net("softmax", use_bias=False)

    def ends():
        model = build()
        return keras.Model(model.input, model.layers[-1](model.layers[-2].output[:, -1]))

    make = classifier(adam, ends, loss="sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    weights = {word: 0.5 + word / 10 for word in range(23)}
    return equal(make, (x, y[:, -1:]), LOGITS, class_weight=weights)


@full
def check_masks_and_a_class_that_is_ignored():
    """Some workers have more that is masked, or ignored, than others."""
    x, y = texts()
    x[:9, 2:], y[5:20, 1] = 0, 7
    losses = [
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=7),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
    ]
    makes = [classifier(sgd, net(mask_zero=True), loss=loss) for loss in losses]
    return max(equal(make, (x, y), LOGITS, validates=True) for make in makes)


@full
def check_steps_without_a_graph():
    return equal(classifier(sgd, net(), run_eagerly=True), texts(25), LOGITS, epochs=1)


def check_a_language_model_that_is_split_from_its_first_layer_to_its_last_is_saved():
    layers = {"embedding": "rows", "attention": "heads", **LOGITS}
    x, y = texts(48)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "epoch-{epoch}.keras"))
        keras.utils.set_random_seed(1)
        model = classifier(sgd, net())()
        callbacks = [Distribute("ring", model_parallel=Split(layers)), keras.callbacks.ModelCheckpoint(path)]
        options = {"shuffle": False, "verbose": 0, "epochs": 2}
        model.fit(*easyscale.shard(x, y), batch_size=easyscale.local_batch(24), callbacks=callbacks, **options)
        comm.barrier()
        keras.utils.set_random_seed(1)
        reference = classifier(sgd, net())()
        reference.fit(x, y, batch_size=24, **options)
        np.testing.assert_allclose(model.evaluate(x, y, verbose=0), reference.evaluate(x, y, verbose=0), rtol=1e-4)
        if comm.is_chief:
            loaded = keras.models.load_model(path.format(epoch=2))
            assert type(loaded.optimizer) is keras.optimizers.SGD
            assert largest_difference(loaded, reference) <= 1e-5
            np.testing.assert_allclose(loaded.evaluate(x, y, verbose=0), reference.evaluate(x, y, verbose=0), rtol=1e-4)
        comm.barrier()
    return largest_difference(model, reference)


@full
def check_what_is_sent_in_a_step_is_what_the_docstring_says():
    """8 rows of 12 numbers on each worker, and words as many as 100 or 1000: it is the same. All weights are slices."""
    size, sent = comm.size, []
    for words in (100, 1000):
        layers = [
            keras.layers.Dense(12, use_bias=False, name="first"),
            keras.layers.Dense(words, name="logits"),
        ]
        model, counts = (
            classifier(sgd, lambda layers=layers: keras.Sequential([keras.Input((12,)), *layers]))(),
            Counts(),
        )
        generator = np.random.default_rng(0)
        data = generator.normal(size=(32 * size, 12)).astype("float32"), generator.integers(0, words, 32 * size)
        distribute = Distribute("ring", model_parallel=Split({"first": "rows", **LOGITS}))
        options = {"batch_size": 8, "shuffle": False, "verbose": 0}
        model.fit(*easyscale.shard(*data), callbacks=[distribute, counts], **options)
        sent.append(counts.in_steps)
        calls = [CallShapes([(None, 12)], (None, words))]
        a, m = 4 * 8 * 12, 8
        cost = Vocabulary(model.get_layer("logits")).cost(8, calls, size, has_gradient=True)
        assert cost == (size - 1) * (2 * a + 4 * m + 2 * 16 * m)
        first = (size - 1) * (a / size + 2 * a)
        assert sent[-1] == [cost + first] * 2
    assert sent[0] == sent[1]
