"""Servers that wait for all workers, on other backends: the steps of one process, and every rank the same."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import keras  # noqa: E402
from models import classify, equal  # noqa: E402
from servers_on_ranks import (  # noqa: E402
    check_a_batch_that_is_trained_after_fit_is_of_the_workers_alone,
    check_a_model_that_its_first_step_builds,
    check_adam_with_validation,
    check_an_optimizer_that_looks_at_whole_weights,
    check_gradient_accumulation,
    check_gradients_that_leave_in_buckets,
    check_momentum_with_clipping_by_the_norm_of_all_gradients,
    check_only_servers_own_the_state,
    check_sparse_gradients,
    check_the_code_after_fit_works_on_servers,
    check_workers_and_servers_are_told_apart,
)

__all__ = [
    "check_a_batch_that_is_trained_after_fit_is_of_the_workers_alone",
    "check_a_model_that_its_first_step_builds",
    "check_adam_with_validation",
    "check_an_optimizer_that_looks_at_whole_weights",
    "check_gradient_accumulation",
    "check_gradients_that_leave_in_buckets",
    "check_momentum_with_clipping_by_the_norm_of_all_gradients",
    "check_only_servers_own_the_state",
    "check_sparse_gradients",
    "check_the_code_after_fit_works_on_servers",
    "check_workers_and_servers_are_told_apart",
]


def check_what_a_server_rehearses_leaves_no_trace():
    def build():
        layers = [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(8),
            keras.layers.Dropout(0.0, seed=1),
        ]
        layers += [keras.layers.LayerNormalization(), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), keras.optimizers.AdamW(0.01, weight_decay=0.1))

    return equal(build, exchanges=["parameter_server"], distribute={"update": "replicated"})
