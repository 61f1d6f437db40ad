"""The checks of this folder, and those of training that do not know the backend, on ranks whose Keras has JAX."""

from pathlib import Path

from jax_ranks import START
from launches import over_ranks

HERE = Path(__file__).parent
EQUALITY = HERE.parents[1] / "training" / "equality_on_ranks.py"


@over_ranks(HERE / "backend_on_ranks.py", sizes=[1], starts=[START], group="jax")
def test_jax_gives_what_a_backend_must(check):
    check()


@over_ranks(HERE / "loops_on_ranks.py", sizes=[2], starts=[START], full=[1, 3, 4], group="jax")
def test_loops_of_ones_own_take_the_steps_of_one_process(check):
    check()


@over_ranks(EQUALITY, sizes=[2], dealt=[1, 3, 4], limit=400, starts=[START], has_rows=True, group="jax")
def test_fit_takes_the_steps_of_one_process(check):
    check()


@over_ranks(HERE / "fit_on_ranks.py", sizes=[2], limit=400, starts=[START], full=[1, 3, 4], group="jax")
def test_models_and_metrics_are_those_of_one_process(check):
    check()


@over_ranks(HERE / "optimizers_on_ranks.py", sizes=[2], limit=400, starts=[START], full=[1, 3, 4], group="jax")
def test_optimizers_take_the_steps_of_one_process(check):
    check()
