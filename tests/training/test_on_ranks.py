"""The checks of this folder, each on real processes."""

from pathlib import Path

from launches import over_ranks

HERE = Path(__file__).parent


@over_ranks(
    HERE / "equality_on_ranks.py",
    sizes=[3],
    full=[1, 2, 4],
    only=[
        "adam",
        "an_optimizer_that_looks_at_whole_layers",
        "gradient_accumulation_over_the_end_of_an_epoch",
        "sgd_with_momentum",
        "sparse_gradients",
    ],
    limit=900,
    has_rows=True,
)
def test_ranks_take_the_steps_of_one_process(check):
    check()


@over_ranks(HERE / "equality_of_optimizers_on_ranks.py", sizes=[], full=[3], limit=900)
def test_optimizers_on_ranks_take_the_steps_of_one_process(check):
    check()


@over_ranks(
    HERE / "equality_of_models_on_ranks.py",
    sizes=[3],
    only=[
        "a_step_that_differentiates_a_loss_without_a_reduction",
        "two_steps_in_an_epoch_and_data_for_three",
    ],
    limit=900,
)
def test_ranks_train_models_as_one_process_does(check):
    check()


@over_ranks(HERE / "sparse_on_ranks.py", sizes=[], full=[3], limit=400, has_rows=True)
def test_sparse_gradients_take_the_steps_of_one_process(check):
    check()


@over_ranks(HERE / "equality_of_generators_on_ranks.py", sizes=[], full=[2, 3], limit=400)
def test_ranks_take_the_steps_of_one_process_on_generators(check):
    check()


@over_ranks(HERE / "equality_on_ranks.py", sizes=[1], full=[2], only=["clipnorm"], limit=900, devices=2, has_rows=True)
def test_two_devices_take_the_steps_of_one(check):
    check()


@over_ranks(HERE / "equality_on_ranks.py", sizes=[], full=[1], limit=900, devices=4, has_rows=True)
def test_four_devices_take_the_steps_of_one(check):
    check()


@over_ranks(
    HERE / "equality_of_optimizers_on_ranks.py",
    sizes=[1],
    only=["adam_on_all_digits", "an_optimizer_that_counts_before_its_update_under_loss_scaling", "lars"],
    limit=900,
    devices=2,
)
def test_optimizers_on_devices_take_the_steps_of_one_device(check):
    check()


@over_ranks(
    HERE / "equality_of_models_on_ranks.py",
    sizes=[1],
    only=[
        "a_step_that_differentiates_what_a_function_of_keras_returns",
        "an_embedding_of_positions",
        "one_optimizer_for_two_lists_of_variables_of_the_same_shapes",
        "sparse_gradients_that_are_clipped_by_their_norm",
        "synchronized_batch_normalization_with_a_mask",
    ],
    limit=900,
    devices=2,
)
def test_devices_train_models_as_one_does(check):
    check()


@over_ranks(HERE / "in_graph_on_ranks.py", sizes=[], full=[1], limit=900, devices=4)
def test_four_devices(check):
    check()


@over_ranks(
    HERE / "in_graph_on_ranks.py",
    sizes=[2],
    only=[
        "a_batch_that_is_trained_after_fit_is_a_whole_step",
        "a_dataset_whose_elements_have_the_parts_of_all_devices",
        "a_model_that_was_built_outside_of_the_scope_is_refused",
        "training_goes_on_from_a_checkpoint_as_if_it_had_not_been_interrupted",
        "weights_that_differ_between_devices_are_found",
        "what_cannot_be_in_graph_is_refused",
    ],
    limit=900,
    devices=2,
)
def test_processes_with_devices(check):
    check()


@over_ranks(HERE / "models_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_models_train_on_several_processes(check):
    check()


@over_ranks(HERE / "loops_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_training_loops_run_on_several_processes(check):
    check()


@over_ranks(HERE / "data_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_data_is_divided_over_several_processes(check):
    check()


@over_ranks(HERE / "checkpoints_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_training_goes_on_from_checkpoints_on_several_processes(check):
    check()


@over_ranks(HERE / "layer_state_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_layers_have_the_same_state_on_several_processes(check):
    check()


@over_ranks(HERE / "metrics_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_metrics_are_those_of_all_processes(check):
    check()


@over_ranks(HERE / "precision_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_mixed_precision_skips_a_step_on_all_processes(check):
    check()


@over_ranks(HERE / "randomness_on_ranks.py", sizes=[], full=[3], limit=600)
def test_random_numbers_differ_between_processes(check):
    check()


@over_ranks(HERE / "drift_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_processes_that_drift_apart_are_told_so(check):
    check()


@over_ranks(HERE / "profile_on_ranks.py", sizes=[2], limit=600)
def test_what_is_recorded_of_steps(check):
    check()


@over_ranks(HERE / "counts_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_what_is_sent_is_as_little_as_promised(check):
    check()


@over_ranks(HERE / "late_weights_on_ranks.py", sizes=[2], full=[3], limit=400)
def test_weights_that_come_in_the_next_step_are_those_of_the_last(check):
    check()


@over_ranks(HERE / "optimizers_on_ranks.py", sizes=[], full=[2, 3])
def test_optimizers_of_keras_see_the_mean_gradient(check):
    check()


@over_ranks(HERE / "servers_on_ranks.py", sizes=[], full=[2, 4], limit=600, servers=1)
def test_workers_with_a_server_take_the_steps_of_one_process(check):
    check()


@over_ranks(HERE / "servers_on_ranks.py", sizes=[], full=[3, 4], limit=600, servers=2)
def test_workers_with_two_servers_take_the_steps_of_one_process(check):
    check()


@over_ranks(
    HERE / "served_on_ranks.py",
    sizes=[3],
    only=[
        "a_step_does_without_the_late",
        "epochs_of_different_lengths",
        "weights_that_callbacks_set_between_epochs_are_the_servers",
        "what_servers_cannot_do_is_refused_before_the_first_step",
    ],
    limit=400,
)
def test_workers_that_serve_each_other_wait_for_nobody(check):
    check()


@over_ranks(
    HERE / "served_on_ranks.py",
    sizes=[2],
    full=[3],
    only=[
        "a_loop_of_ones_own_is_refused_behind_a_fit",
        "gradients_and_weights_travel_less_often",
        "optimizers_that_look_at_whole_weights_have_whole_weights_also_in_checkpoints",
    ],
    limit=400,
    servers=1,
)
def test_workers_with_a_server_wait_for_nobody(check):
    check()


@over_ranks(HERE / "served_alone_on_ranks.py", sizes=[], full=[1], limit=400, servers=2, has_rows=True)
def test_one_worker_that_servers_do_not_wait_for_takes_the_steps_of_one_process(check):
    check()
