"""Updates in which workers step alone: their checks know no backend."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "update"))

from fragments_on_ranks import (  # noqa: E402
    check_weights_of_rounds_that_go_on_beside_are_those_of_the_equations,
    check_weights_that_take_turns_are_those_of_the_equations,
    check_workers_step_on_while_a_round_goes_on,
)
from local_on_ranks import (  # noqa: E402
    check_a_file_of_an_epoch_has_mean_weights_and_the_mean_of_all_states,
    check_a_round_after_each_step_is_one_process,
    check_a_worker_that_stops_stops_all_in_the_next_round,
    check_differences_travel_in_a_form,
    check_layers_that_move_by_themselves_are_averaged_and_draw_apart,
    check_nothing_is_sent_between_rounds,
    check_training_goes_on_from_a_checkpoint_with_the_same_bits,
    check_weights_are_those_of_the_equations_also_in_a_second_fit,
    check_who_looks_between_rounds_sees_the_weights_of_the_last,
    check_workers_with_the_same_data_are_told_so_in_the_first_round,
)

__all__ = [
    "check_a_file_of_an_epoch_has_mean_weights_and_the_mean_of_all_states",
    "check_a_round_after_each_step_is_one_process",
    "check_a_worker_that_stops_stops_all_in_the_next_round",
    "check_differences_travel_in_a_form",
    "check_layers_that_move_by_themselves_are_averaged_and_draw_apart",
    "check_nothing_is_sent_between_rounds",
    "check_training_goes_on_from_a_checkpoint_with_the_same_bits",
    "check_weights_are_those_of_the_equations_also_in_a_second_fit",
    "check_weights_of_rounds_that_go_on_beside_are_those_of_the_equations",
    "check_weights_that_take_turns_are_those_of_the_equations",
    "check_who_looks_between_rounds_sees_the_weights_of_the_last",
    "check_workers_step_on_while_a_round_goes_on",
    "check_workers_with_the_same_data_are_told_so_in_the_first_round",
]
