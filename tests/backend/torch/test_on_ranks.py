"""The checks of this folder, and those of training that do not know the backend, on ranks whose Keras has PyTorch."""

from pathlib import Path

from launches import over_ranks
from other_backends import TORCH

STARTS = [TORCH.start]
HERE = Path(__file__).parent
SHARED = HERE.parent / "shared"
EQUALITY = HERE.parents[1] / "training" / "equality_on_ranks.py"


@over_ranks(HERE / "backend_on_ranks.py", sizes=[1], starts=STARTS)
def test_torch_gives_what_a_backend_must(check):
    check()


@over_ranks(HERE / "data_loader_on_ranks.py", sizes=[1], starts=STARTS)
def test_a_data_loader_is_divided(check):
    check()


@over_ranks(
    SHARED / "loops_on_ranks.py",
    sizes=[3],
    full=[1, 2, 4],
    only=["a_loop_of_ones_own_with_each_exchange", "clipping_sees_the_mean"],
    starts=STARTS,
)
def test_loops_of_ones_own_take_the_steps_of_one_process(check):
    check()


@over_ranks(
    EQUALITY,
    sizes=[3],
    full=[1, 2, 4],
    only=["gradient_accumulation_over_the_end_of_an_epoch", "sgd_with_momentum"],
    limit=400,
    starts=STARTS,
    has_rows=True,
)
def test_fit_takes_the_steps_of_one_process(check):
    check()


@over_ranks(
    SHARED / "fit_on_ranks.py",
    sizes=[3],
    full=[1, 2, 4],
    only=[
        "a_metric_with_a_merge_state_and_without_a_config",
        "evaluate_with_the_callback_is_that_of_all_ranks",
        "evaluating_after_fit_needs_no_other_rank",
        "losses_of_several_outputs_where_the_last_batch_is_whole_on_some_ranks",
        "predictions_of_all_ranks_in_order",
        "random_layers_differ_between_ranks_and_come_again_with_the_seed",
        "two_steps_in_an_epoch_and_data_for_three",
    ],
    limit=400,
    starts=STARTS,
)
def test_models_and_metrics_are_those_of_one_process(check):
    check()


@over_ranks(HERE / "own_fit_on_ranks.py", sizes=[2], full=[1, 3, 4], limit=400, starts=STARTS)
def test_what_is_the_backends_own(check):
    check()


@over_ranks(HERE / "early_on_ranks.py", sizes=[2], full=[1, 3, 4], starts=STARTS)
def test_gradients_leave_while_the_backward_pass_goes_on(check):
    check()


@over_ranks(
    SHARED / "optimizers_on_ranks.py",
    sizes=[2],
    full=[1, 3, 4],
    only=[
        "a_sharded_update_with_each_exchange",
        "a_warm_up_with_momentum_correction",
        "gradients_that_leave_in_buckets",
        "lars",
        "weights_that_lie_transposed_in_memory",
    ],
    limit=400,
    starts=STARTS,
)
def test_optimizers_take_the_steps_of_one_process(check):
    check()


@over_ranks(
    SHARED / "updates_on_ranks.py",
    sizes=[2],
    full=[3],
    only=[
        "differences_travel_in_a_form",
        "training_goes_on_from_a_checkpoint_with_the_same_bits",
        "weights_of_rounds_that_go_on_beside_are_those_of_the_equations",
        "who_looks_between_rounds_sees_the_weights_of_the_last",
        "workers_with_the_same_data_are_told_so_in_the_first_round",
    ],
    limit=400,
    starts=STARTS,
)
def test_workers_step_alone_between_rounds(check):
    check()


@over_ranks(HERE / "own_updates_on_ranks.py", sizes=[2], full=[3], limit=400, starts=STARTS)
def test_workers_step_alone_with_what_only_some_backends_have(check):
    check()


@over_ranks(
    SHARED / "on_gpus_on_ranks.py",
    sizes=[2],
    full=[1, 3, 4],
    only=[
        "a_sharded_update_takes_the_steps_of_one_process",
        "an_exchange_of_gpus_is_refused_where_tensors_are_elsewhere",
    ],
    limit=400,
    starts=STARTS,
)
def test_gradients_that_stay_on_gpus_take_the_steps_of_one_process(check):
    check()


@over_ranks(SHARED / "resuming_on_ranks.py", sizes=[], full=[1, 2, 3, 4], limit=400, starts=STARTS)
def test_training_goes_on_from_a_checkpoint(check):
    check()


@over_ranks(HERE / "resuming_data_on_ranks.py", sizes=[2], full=[1, 3, 4], limit=400, starts=STARTS)
def test_data_go_on_from_a_checkpoint(check):
    check()


@over_ranks(
    SHARED / "with_servers_on_ranks.py",
    sizes=[2],
    full=[3],
    only=["a_batch_that_is_trained_after_fit_is_of_the_workers_alone", "what_a_server_rehearses_leaves_no_trace"],
    limit=400,
    servers=1,
    starts=STARTS,
)
def test_workers_with_a_server_take_the_steps_of_one_process(check):
    check()


@over_ranks(
    SHARED / "serving_on_ranks.py",
    sizes=[3],
    only=[
        "gradients_and_weights_travel_less_often",
        "optimizers_that_look_at_whole_weights_have_whole_weights_also_in_checkpoints",
        "what_servers_cannot_do_is_refused_before_the_first_step",
    ],
    limit=400,
    starts=STARTS,
)
def test_workers_that_serve_each_other_wait_for_nobody(check):
    check()


@over_ranks(
    SHARED / "serving_on_ranks.py",
    sizes=[2],
    only=[
        "a_saved_model_goes_on_in_stock_keras",
        "a_step_does_without_the_late",
        "every_gradient_is_applied_and_its_staleness_is_counted",
        "nobody_is_further_ahead_than_the_bound",
    ],
    limit=400,
    servers=1,
    starts=STARTS,
)
def test_workers_with_a_server_wait_for_nobody(check):
    check()


@over_ranks(HERE / "own_servers_on_ranks.py", sizes=[2], full=[3], limit=400, servers=1, starts=STARTS)
def test_servers_with_what_only_some_backends_have(check):
    check()
