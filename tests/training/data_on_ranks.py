"""Data of all kinds, divided by `shard`."""

import gc
import itertools
import tempfile
import warnings
import weakref

import keras
import numpy as np
import tensorflow as tf
from covering import full
from models import assert_as_one_process, classify, conv_net, dense, digits

import easyscale
from easyscale.callbacks import Distribute
from easyscale.data import fingerprints
from easyscale.training.keras_fit import locals_of_fit

GLOBAL_BATCH = 24


def _sgd(rate=0.1):
    return keras.optimizers.SGD(rate, momentum=0.9)


def _fit_datasets(make, take, **options):
    """`make(x, y)` returns the whole data, `take(it)` a worker's part of it, both batched."""
    x, y = digits(GLOBAL_BATCH * 6 + 5)

    def distributed():
        model = classify(conv_net(), _sgd())
        return model, model.fit(take(make(x, y)), epochs=2, verbose=0, callbacks=[Distribute()], **options)

    def single():
        model = classify(conv_net(), _sgd())
        data = make(x, y)
        if isinstance(data, tf.data.Dataset) and data.element_spec[1].shape.rank == 0:
            data = data.batch(GLOBAL_BATCH)
        return model, model.fit(data, epochs=2, verbose=0, **options)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_as_one_process(distributed, single)
    assert not [one for one in caught if "ran out of data" in str(one.message)]


def check_a_batched_dataset():
    _fit_datasets(lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH), easyscale.shard)


@full
def check_a_dataset_of_unknown_length_that_goes_on_in_the_next_epoch():
    x, y = digits(GLOBAL_BATCH * 2 + 1)
    spec = tf.TensorSpec((None, *x.shape[1:]), x.dtype), tf.TensorSpec((None,), y.dtype)

    def batches():
        for start in range(0, len(x), GLOBAL_BATCH):
            yield x[start : start + GLOBAL_BATCH], y[start : start + GLOBAL_BATCH]

    def fit(take, callbacks):
        model = classify(conv_net(), _sgd())
        data = take(tf.data.Dataset.from_generator(batches, output_signature=spec))
        return model, model.fit(data, epochs=9, steps_per_epoch=2, verbose=0, callbacks=callbacks)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")  # as stock Keras says it here
        assert_as_one_process(lambda: fit(easyscale.shard, [Distribute()]), lambda: fit(lambda data: data, []))


def check_a_batched_dataset_with_steps_after():
    with tempfile.TemporaryDirectory() as own:
        file = easyscale.communicator.get().all_gather_object(f"{own}/cached")[0]  # TensorFlow locks it

        def scaled(x, y):
            batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH)
            return batches.map(lambda x, y: (2 * x, y)).cache(file).prefetch(1)

        _fit_datasets(scaled, easyscale.shard)
        easyscale.communicator.get().barrier()


@full
def check_an_unbatched_dataset():
    _fit_datasets(
        lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)),
        lambda data: easyscale.shard(data).batch(easyscale.local_batch(GLOBAL_BATCH)),
    )


class _Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    @property
    def num_batches(self):
        return -(-len(self.x) // GLOBAL_BATCH)

    def __getitem__(self, index):
        rows = slice(index * GLOBAL_BATCH, (index + 1) * GLOBAL_BATCH)
        return self.x[rows], self.y[rows]


@full
def check_a_py_dataset():
    _fit_datasets(_Batches, easyscale.shard, shuffle=False)


@full
def check_generators_of_different_lengths():
    x, y = digits(GLOBAL_BATCH * 6 + 1)

    def batches(x, y, batch):
        for start in range(0, len(x), batch):
            yield x[start : start + batch], y[start : start + batch]

    def distributed():
        model = classify(conv_net(), _sgd())
        xs, ys = easyscale.shard(x, y)
        data = batches(xs, ys, easyscale.local_batch(GLOBAL_BATCH))
        return model, model.fit(data, verbose=0, callbacks=[Distribute()])

    def single():
        model = classify(conv_net(), _sgd())
        return model, model.fit(batches(x, y, GLOBAL_BATCH), verbose=0)

    assert_as_one_process(distributed, single)


@full
def check_data_are_let_go_of_when_fit_has_ended():
    """Else a thread of theirs asks for more of them while Python ends."""
    x, y = digits(8)
    model, data, known = classify(conv_net(), _sgd()), ((x, y) for _ in itertools.count()), []
    looks = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: known.append(weakref.ref(locals_of_fit(model)["epoch_iterator"]))
    )
    model.fit(data, epochs=2, steps_per_epoch=2, verbose=0, callbacks=[Distribute(), looks])
    gc.collect()
    assert [one() for one in known] == [None] * 4


def check_an_epoch_without_an_end_is_reported():
    model, (x, y) = classify(conv_net(), _sgd()), digits(GLOBAL_BATCH)
    stops = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: _stop(model, batch))
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH)
    endless = [easyscale.shard(batches.repeat()), easyscale.shard(batches).repeat()]
    ending = [easyscale.shard(batches.repeat(2)), easyscale.shard(batches.repeat()).take(2)]
    for data in (*endless, *ending):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(data, verbose=0, callbacks=[Distribute(), stops])
        said = [str(one.message) for one in caught if "an epoch must end" in str(one.message)]
        assert len(said) == (easyscale.is_chief() and data in endless), said


def check_data_that_ranks_have_shuffled_differently_is_reported():
    (x, y), model, rank = digits(GLOBAL_BATCH), dense(_sgd)(), easyscale.rank()
    tensors = tf.data.Dataset.from_tensor_slices((x, y))

    def shuffled(seed):
        order = np.random.default_rng(seed).permutation(len(x))
        return x[order], y[order]

    def without_a_seed(seed):
        tf.random.set_seed(seed)
        return easyscale.shard(tensors.shuffle(9).batch(GLOBAL_BATCH))

    def reports(shard):
        fingerprints._has_warned = False
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(shard(), verbose=0, callbacks=[Distribute()])
        return any("the same data in the same order" in str(one.message) for one in caught)

    same = [
        lambda: tf.data.Dataset.from_tensor_slices(easyscale.shard(*shuffled(1))).batch(4),
        lambda: without_a_seed(3),
        lambda: easyscale.shard(tensors).shuffle(9, seed=rank).batch(4),
    ]
    different = [
        lambda: tf.data.Dataset.from_tensor_slices(easyscale.shard(*shuffled(rank))).batch(4),
        lambda: easyscale.shard(tensors.shuffle(9, seed=rank + 1).batch(GLOBAL_BATCH)),
        lambda: without_a_seed(rank),
    ]
    tf.random.set_seed(2)
    assert [reports(shard) for shard in same] == [False] * 3
    assert [reports(shard) for shard in different] == [easyscale.is_chief()] * 3


def _stop(model, batch):
    if batch == 2:
        model.stop_training = True
