"""P processes take the steps of one: two epochs on the digits, one global batch, no shuffling."""

import keras
from models import assert_as_one_process, classify, conv_net, digits

import easyscale


def _equal(exchange, make_optimizer, count=1440, global_batch=48, **options):
    x, y = digits(count)

    def distributed():
        model = classify(conv_net(), make_optimizer())
        xs, ys = easyscale.shard(x, y)
        callback = easyscale.callbacks.Distribute(exchange, **options)
        batch = easyscale.local_batch(global_batch)
        return model, model.fit(
            xs, ys, batch_size=batch, epochs=2, shuffle=False, callbacks=[callback], validation_data=(xs, ys), verbose=0
        )

    def single():
        model = classify(conv_net(), make_optimizer())
        return model, model.fit(
            x, y, batch_size=global_batch, epochs=2, shuffle=False, validation_data=(x, y), verbose=0
        )

    assert_as_one_process(distributed, single)


def _momentum():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def check_sgd_momentum_by_ring():
    _equal("ring", _momentum)


def check_sgd_momentum_by_tree():
    _equal("tree", _momentum)


def check_sgd_momentum_by_mpi():
    _equal("mpi", _momentum)


def check_adam_by_ring():
    _equal("ring", keras.optimizers.Adam)


def check_adam_by_tree():
    _equal("tree", keras.optimizers.Adam)


def check_adam_by_mpi():
    _equal("mpi", keras.optimizers.Adam)


def check_many_small_buckets():
    _equal("ring", _momentum, count=480, bucket_bytes=512)


def check_a_partial_last_batch():
    _equal("ring", _momentum, count=1437)


def check_a_last_batch_that_some_ranks_have_no_part_of():
    _equal("tree", keras.optimizers.Adam, count=48 * 10 + 1)
