"""The checks of this folder, and those of training that do not know the backend, on ranks whose Keras has JAX."""

from pathlib import Path

from launches import over_ranks
from other_backends import JAX

STARTS = [JAX.start]
HERE = Path(__file__).parent
SHARED = HERE.parent / "shared"
EQUALITY = HERE.parents[1] / "training" / "equality_on_ranks.py"


@over_ranks(HERE / "backend_on_ranks.py", sizes=[1], starts=STARTS)
def test_jax_gives_what_a_backend_must(check):
    check()


@over_ranks(
    SHARED / "loops_on_ranks.py",
    sizes=[2],
    full=[1, 3, 4],
    only=["a_loop_of_ones_own_with_each_exchange"],
    starts=STARTS,
)
def test_loops_of_ones_own_take_the_steps_of_one_process(check):
    check()


@over_ranks(EQUALITY, sizes=[], full=[1, 2, 3, 4], limit=400, starts=STARTS, has_rows=True)
def test_fit_takes_the_steps_of_one_process(check):
    check()


@over_ranks(
    SHARED / "fit_on_ranks.py",
    sizes=[2],
    full=[1, 3, 4],
    only=[
        "a_metric_with_a_merge_state_and_without_a_config",
        "a_py_dataset",
        "predictions_of_all_ranks_in_order",
    ],
    limit=400,
    starts=STARTS,
)
def test_models_and_metrics_are_those_of_one_process(check):
    check()


@over_ranks(HERE / "own_fit_on_ranks.py", sizes=[2], full=[1, 3, 4], limit=400, starts=STARTS)
def test_what_is_the_backends_own(check):
    check()


@over_ranks(
    SHARED / "optimizers_on_ranks.py",
    sizes=[2],
    full=[1, 3, 4],
    only=["a_sharded_update_with_each_exchange", "a_warm_up_with_momentum_correction"],
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
        "weights_of_rounds_that_go_on_beside_are_those_of_the_equations",
        "workers_with_the_same_data_are_told_so_in_the_first_round",
    ],
    limit=400,
    starts=STARTS,
)
def test_workers_step_alone_between_rounds(check):
    check()


@over_ranks(
    SHARED / "resuming_on_ranks.py",
    sizes=[2],
    full=[1, 3, 4],
    only=["data_that_go_on_in_the_next_epoch"],
    limit=400,
    starts=STARTS,
)
def test_training_goes_on_from_a_checkpoint(check):
    check()


@over_ranks(
    SHARED / "on_gpus_on_ranks.py",
    sizes=[2],
    full=[1, 3, 4],
    only=["a_sharded_update_takes_the_steps_of_one_process", "moving_averages_and_accumulation"],
    limit=400,
    starts=STARTS,
)
def test_gradients_that_stay_on_gpus_take_the_steps_of_one_process(check):
    check()


@over_ranks(
    SHARED / "with_servers_on_ranks.py",
    sizes=[],
    full=[2, 3],
    limit=400,
    servers=1,
    starts=STARTS,
)
def test_workers_with_a_server_take_the_steps_of_one_process(check):
    check()


@over_ranks(
    SHARED / "serving_on_ranks.py",
    sizes=[2],
    full=[3],
    only=[
        "gradients_and_weights_travel_less_often",
        "optimizers_that_look_at_whole_weights_have_whole_weights_also_in_checkpoints",
    ],
    limit=400,
    starts=STARTS,
)
def test_workers_that_serve_each_other_wait_for_nobody(check):
    check()


@over_ranks(
    SHARED / "serving_on_ranks.py",
    sizes=[],
    full=[2],
    limit=400,
    servers=1,
    starts=STARTS,
)
def test_workers_with_a_server_wait_for_nobody(check):
    check()
