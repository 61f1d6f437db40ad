"""Optimizers on other backends take the steps of one process, and have a part of their state on each rank."""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import keras  # noqa: E402
import numpy as np  # noqa: E402
from equality_of_optimizers_on_ranks import (  # noqa: E402
    check_a_warm_up_with_momentum_correction,
    check_an_optimizer_of_ones_own_that_looks_at_all_gradients,
    check_an_optimizer_that_counts_before_its_update,
    check_clipvalue,
    check_exponential_moving_average_of_weights,
    check_global_clipnorm,
    check_gradient_accumulation_that_goes_on_in_the_next_fit,
    check_gradients_that_leave_in_buckets,
    check_gradients_that_leave_in_buckets_to_replicated_updates,
    check_lars,
    check_learning_rate_schedule,
    check_loss_scale_factor,
    check_weight_decay,
)
from folders import new_folder  # noqa: E402
from models import (  # noqa: E402
    EXCHANGES,
    assert_equal_ranks,
    classify,
    conv,
    conv_net,
    different_start,
    digits,
    equal,
)
from precision_on_ranks import (  # noqa: E402
    check_mixed_bfloat16_takes_the_steps_of_one_process_to_its_rounding,
)

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402

comm = easyscale.communicator.get()

__all__ = [
    "check_a_warm_up_with_momentum_correction",
    "check_an_optimizer_of_ones_own_that_looks_at_all_gradients",
    "check_an_optimizer_that_counts_before_its_update",
    "check_clipvalue",
    "check_exponential_moving_average_of_weights",
    "check_global_clipnorm",
    "check_gradient_accumulation_that_goes_on_in_the_next_fit",
    "check_gradients_that_leave_in_buckets",
    "check_gradients_that_leave_in_buckets_to_replicated_updates",
    "check_lars",
    "check_learning_rate_schedule",
    "check_loss_scale_factor",
    "check_mixed_bfloat16_takes_the_steps_of_one_process_to_its_rounding",
    "check_weight_decay",
]


def check_weights_that_lie_transposed_in_memory():
    """As those of an orthogonal initializer on PyTorch, so of a `SimpleRNN`."""

    def build(optimizer):
        layers = [keras.Input((8, 8, 1)), keras.layers.Reshape((8, 8)), keras.layers.SimpleRNN(6)]
        return classify(keras.Sequential([*layers, keras.layers.Dense(10)]), optimizer)

    optimizers = [lambda: keras.optimizers.Adam(0.01), lambda: keras.optimizers.SGD(0.1, momentum=0.9)]
    rows = itertools.product(optimizers, ["sharded", "replicated"])
    return max(
        equal(lambda make=make: build(make()), exchanges=["ring"], distribute={"update": update})
        for make, update in rows
    )


def check_a_sharded_update_with_each_exchange():
    optimizer = lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.1)
    return equal(conv(optimizer), exchanges=EXCHANGES, distribute={"update": "sharded"})


def check_the_whole_state_of_an_optimizer_is_that_of_one_process_after_fit():
    x, y = digits(98)

    def train(x, y, batch, **options):
        model = classify(conv_net(), keras.optimizers.Adam())
        model.fit(x, y, batch, shuffle=False, verbose=0, **options)
        return model

    different_start()
    model = train(*easyscale.shard(x, y), easyscale.local_batch(24), callbacks=[Distribute(update="sharded")])
    state = [np.array(one) for one in model.optimizer.variables]
    assert_equal_ranks(state)
    keras.utils.set_random_seed(1)  # the chief's
    for own, expected in zip(state, train(x, y, 24).optimizer.variables, strict=True):
        np.testing.assert_allclose(own, np.array(expected), rtol=1e-4, atol=1e-6)


def check_a_file_that_a_callback_has_written_has_the_whole_state():
    folder = new_folder()
    x, y = easyscale.shard(*digits(98))
    model = classify(conv_net(), keras.optimizers.Adam())
    callbacks = [keras.callbacks.ModelCheckpoint(folder / "model.keras"), Distribute("ring", update="sharded")]
    model.fit(x, y, easyscale.local_batch(24), verbose=0, callbacks=callbacks)
    if comm.is_chief:
        loaded = keras.models.load_model(folder / "model.keras")
        for own, other in zip(_variables(loaded), _variables(model), strict=True):
            np.testing.assert_array_equal(own, other)


def _variables(model):
    return [keras.ops.convert_to_numpy(one) for one in (*model.variables, *model.optimizer.variables)]


class Sizes(keras.callbacks.Callback):
    """Notes how many numbers of state the optimizer has in `fit()`."""

    def on_train_batch_end(self, batch, logs=None):
        self.count = sum(np.size(np.array(one)) for one in self.model.optimizer.updates.now.variables)


def check_each_rank_has_its_part_of_the_state_in_fit():
    sizes, model = Sizes(), classify(conv_net(), keras.optimizers.Adam())
    weights = model.count_params()
    x, y = easyscale.shard(*digits(48))
    model.fit(x, y, easyscale.local_batch(24), verbose=0, callbacks=[Distribute("ring", update="sharded"), sizes])
    assert sizes.count == 2 * weights + 2 or comm.size > 1  # momentum, velocity; steps, learning rate
    parts = comm.all_gather_object(sizes.count - 2)
    assert sum(parts) == 2 * weights and max(parts) <= 2 * (weights / comm.size + 16 * 6)  # slots begin at 64 bytes
