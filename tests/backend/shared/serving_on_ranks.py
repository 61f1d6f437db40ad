"""Servers that wait for no worker, or for some, on other backends."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

from served_on_ranks import (  # noqa: E402
    check_a_loop_of_ones_own_is_refused_behind_a_fit,
    check_a_saved_model_goes_on_in_stock_keras,
    check_a_second_fit_goes_on,
    check_a_step_does_without_the_late,
    check_epochs_of_different_lengths,
    check_every_gradient_is_applied_and_its_staleness_is_counted,
    check_gradients_and_weights_travel_less_often,
    check_nobody_is_further_ahead_than_the_bound,
    check_optimizers_that_look_at_whole_weights_have_whole_weights_also_in_checkpoints,
    check_that_one_worker_stops_stops_all,
    check_the_chiefs_learning_rate_reaches_the_servers,
    check_weights_that_callbacks_set_between_epochs_are_the_servers,
    check_what_servers_cannot_do_is_refused_before_the_first_step,
)

__all__ = [
    "check_a_loop_of_ones_own_is_refused_behind_a_fit",
    "check_a_saved_model_goes_on_in_stock_keras",
    "check_a_second_fit_goes_on",
    "check_a_step_does_without_the_late",
    "check_epochs_of_different_lengths",
    "check_every_gradient_is_applied_and_its_staleness_is_counted",
    "check_gradients_and_weights_travel_less_often",
    "check_nobody_is_further_ahead_than_the_bound",
    "check_optimizers_that_look_at_whole_weights_have_whole_weights_also_in_checkpoints",
    "check_that_one_worker_stops_stops_all",
    "check_the_chiefs_learning_rate_reaches_the_servers",
    "check_weights_that_callbacks_set_between_epochs_are_the_servers",
    "check_what_servers_cannot_do_is_refused_before_the_first_step",
]
