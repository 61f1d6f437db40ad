"""`fit()` with `Distribute` on other backends takes the steps of one process: models and losses."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import keras  # noqa: E402
import numpy as np  # noqa: E402
from equality_of_generators_on_ranks import check_generators_of_different_lengths_with_steps_per_epoch  # noqa: E402
from equality_of_models_on_ranks import (  # noqa: E402
    check_class_weight,
    check_loss_of_words_that_are_not_masked,
    check_loss_that_ignores_a_class,
    check_loss_that_is_a_mean_by_sample_weights,
    check_loss_that_is_a_sum,
    check_loss_that_is_a_weighted_sum,
    check_one_step_in_an_epoch,
    check_regularizers_of_weights_and_activities,
    check_sample_weight,
    check_several_outputs_and_losses,
    check_two_steps_in_an_epoch_and_data_for_three,
)
from metrics_on_ranks import (  # noqa: E402
    check_a_metric_with_a_merge_state_and_without_a_config,
    check_evaluate_with_a_masked_loss_and_uneven_data,
    check_evaluate_with_the_callback_is_that_of_all_ranks,
    check_evaluating_after_fit_needs_no_other_rank,
    check_every_callback_sees_the_merged_metrics_wherever_it_stands,
    check_losses_of_several_outputs_where_the_last_batch_is_whole_on_some_ranks,
    check_metrics_that_are_not_means,
    check_predictions_of_all_ranks_in_order,
    check_the_chief_may_evaluate_by_itself_within_fit,
    check_weighted_metrics,
)
from models import (  # noqa: E402
    assert_as_one_process,
    classify,
    conv_net,
    dense,
    digits,
    equal,
    sgd,
)
from randomness_on_ranks import (  # noqa: E402
    check_random_layers_differ_between_ranks_and_come_again_with_the_seed,
)

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402

comm = easyscale.communicator.get()

__all__ = [
    "check_a_metric_with_a_merge_state_and_without_a_config",
    "check_class_weight",
    "check_evaluate_with_a_masked_loss_and_uneven_data",
    "check_evaluate_with_the_callback_is_that_of_all_ranks",
    "check_evaluating_after_fit_needs_no_other_rank",
    "check_generators_of_different_lengths_with_steps_per_epoch",
    "check_every_callback_sees_the_merged_metrics_wherever_it_stands",
    "check_loss_of_words_that_are_not_masked",
    "check_loss_that_ignores_a_class",
    "check_loss_that_is_a_mean_by_sample_weights",
    "check_loss_that_is_a_sum",
    "check_loss_that_is_a_weighted_sum",
    "check_losses_of_several_outputs_where_the_last_batch_is_whole_on_some_ranks",
    "check_metrics_that_are_not_means",
    "check_one_step_in_an_epoch",
    "check_predictions_of_all_ranks_in_order",
    "check_random_layers_differ_between_ranks_and_come_again_with_the_seed",
    "check_regularizers_of_weights_and_activities",
    "check_sample_weight",
    "check_several_outputs_and_losses",
    "check_the_chief_may_evaluate_by_itself_within_fit",
    "check_two_steps_in_an_epoch_and_data_for_three",
    "check_weighted_metrics",
]


def check_two_fits_and_a_second_compile():
    x, y = digits(98)

    def train(x, y, batch, **options):
        model = classify(conv_net(), sgd())
        for rate in (0.1, 0.05):
            model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, **options)
            model.optimizer.learning_rate = rate
        classify(model, keras.optimizers.Adam())
        model.fit(x, y, batch, shuffle=False, verbose=0, **options)
        return model

    def distributed():
        return train(*easyscale.shard(x, y), easyscale.local_batch(24), callbacks=[Distribute()])

    return assert_as_one_process(distributed, lambda: train(x, y, 24))


def check_one_rank_without_data_in_the_last_steps():
    return equal(dense(sgd), digits(24 * 2 + 1), global_batch=24, epochs=3)


class Batches(keras.utils.PyDataset):
    """Batches of the digits."""

    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]


def check_a_py_dataset():
    x, y = digits(98)

    def train(data, **options):
        model = dense(sgd)()
        return model, model.fit(data, epochs=2, shuffle=False, verbose=0, **options)

    def distributed():
        return train(easyscale.shard(Batches(x, y, 24)), callbacks=[Distribute()])

    return assert_as_one_process(distributed, lambda: train(Batches(x, y, 24)))


def check_moving_averages_are_the_mean_over_ranks_by_samples():
    layers = [keras.Input((1,)), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    x = np.full((comm.rank + 1, 1), float(comm.rank), "float32")  # rank r has r + 1 samples of r
    model.fit(x, x, batch_size=8, verbose=0, callbacks=[Distribute()])
    samples = np.arange(1, comm.size + 1)
    mean = (samples * (samples - 1)).sum() / samples.sum()
    np.testing.assert_allclose(np.array(layers[1].moving_mean), [0.5 * mean], rtol=1e-6)


def fit_a_little(model):
    x, y = easyscale.shard(*digits(24))
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[Distribute()])
