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


@over_ranks(SHARED / "loops_on_ranks.py", sizes=[1, 3], starts=STARTS, full=[2, 4])
def test_loops_of_ones_own_take_the_steps_of_one_process(check):
    check()


@over_ranks(EQUALITY, sizes=[3], dealt=[1, 2, 4], limit=400, starts=STARTS, has_rows=True)
def test_fit_takes_the_steps_of_one_process(check):
    check()


@over_ranks(SHARED / "fit_on_ranks.py", sizes=[3], limit=400, starts=STARTS, full=[1, 2, 4])
def test_models_and_metrics_are_those_of_one_process(check):
    check()


@over_ranks(HERE / "own_fit_on_ranks.py", sizes=[3], limit=400, starts=STARTS, full=[1, 2, 4])
def test_what_is_the_backends_own(check):
    check()


@over_ranks(HERE / "early_on_ranks.py", sizes=[2], starts=STARTS, full=[1, 3, 4])
def test_gradients_leave_while_the_backward_pass_goes_on(check):
    check()


@over_ranks(SHARED / "optimizers_on_ranks.py", sizes=[3], limit=400, starts=STARTS, full=[1, 2, 4])
def test_optimizers_take_the_steps_of_one_process(check):
    check()


@over_ranks(SHARED / "updates_on_ranks.py", sizes=[3], limit=400, starts=STARTS)
def test_workers_step_alone_between_rounds(check):
    check()


@over_ranks(HERE / "own_updates_on_ranks.py", sizes=[3], limit=400, starts=STARTS)
def test_workers_step_alone_with_what_only_some_backends_have(check):
    check()


@over_ranks(SHARED / "on_gpus_on_ranks.py", sizes=[3], limit=400, starts=STARTS, full=[1, 2, 4])
def test_gradients_that_stay_on_gpus_take_the_steps_of_one_process(check):
    check()


@over_ranks(SHARED / "resuming_on_ranks.py", sizes=[3], limit=400, starts=STARTS, full=[1, 2, 4])
def test_training_goes_on_from_a_checkpoint(check):
    check()


@over_ranks(HERE / "resuming_data_on_ranks.py", sizes=[3], limit=400, starts=STARTS, full=[1, 2, 4])
def test_data_go_on_from_a_checkpoint(check):
    check()


@over_ranks(
    SHARED / "with_servers_on_ranks.py",
    sizes=[2],
    limit=400,
    servers=1,
    starts=STARTS,
    full=[3],
)
def test_workers_with_a_server_take_the_steps_of_one_process(check):
    check()


@over_ranks(SHARED / "serving_on_ranks.py", sizes=[3], limit=400, starts=STARTS, turn=(0, 2))
def test_workers_that_serve_each_other_wait_for_nobody(check):
    check()


@over_ranks(
    SHARED / "serving_on_ranks.py",
    sizes=[2],
    limit=400,
    servers=1,
    starts=STARTS,
    turn=(1, 2),
)
def test_workers_with_a_server_wait_for_nobody(check):
    check()


@over_ranks(
    HERE / "own_servers_on_ranks.py",
    sizes=[2],
    limit=400,
    servers=1,
    starts=STARTS,
    full=[3],
)
def test_servers_with_what_only_some_backends_have(check):
    check()
