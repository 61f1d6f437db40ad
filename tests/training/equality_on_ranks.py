"""P processes or devices take the steps of one: with each exchange, on data that does not divide by anything.

Each check returns the largest difference of a weight; `benchmarks/equivalence.py` makes the table of
`docs/checked.md` of them. More cases, not with each exchange, are in `equality_of_optimizers_on_ranks.py` and
`equality_of_models_on_ranks.py`.
"""

import functools

import keras
import numpy as np
from models import classify, conv, dense, digits, equal, over_exchanges, sgd

# With each exchange


@over_exchanges
def check_sgd_with_momentum(exchanges):
    return equal(conv(sgd), exchanges=exchanges, validates=True)


@over_exchanges
def check_adam(exchanges):
    return equal(conv(keras.optimizers.Adam), exchanges=exchanges)


@over_exchanges
def check_clipnorm(exchanges):
    return equal(dense(lambda: sgd(clipnorm=0.1)), exchanges=exchanges)


@over_exchanges
def check_gradient_accumulation_over_the_end_of_an_epoch(exchanges):
    optimizer = functools.partial(keras.optimizers.Adam, gradient_accumulation_steps=3, global_clipnorm=1.0)
    return equal(dense(optimizer), exchanges=exchanges)


@over_exchanges
def check_even_data(exchanges):
    return equal(dense(sgd), digits(96), exchanges=exchanges)


@over_exchanges
def check_batches_smaller_than_the_number_of_workers(exchanges):
    return equal(dense(sgd), digits(24 + 1), exchanges=exchanges)


@over_exchanges
def check_an_optimizer_that_looks_at_whole_layers(exchanges):
    return equal(conv(keras.optimizers.Lamb), exchanges=exchanges)


@over_exchanges
def check_sparse_gradients(exchanges):
    generator = np.random.default_rng(0)
    words = generator.integers(0, 20, (98, 6)), generator.integers(0, 10, 98)

    def build():
        layers = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(20, 4), keras.layers.Flatten()]
        return classify(keras.Sequential([*layers, keras.layers.Dense(10)]), keras.optimizers.Adam())

    return equal(build, words, exchanges=exchanges)
