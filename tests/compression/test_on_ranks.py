"""Forms in which gradients travel, in a `fit()` on real processes."""

from pathlib import Path

from launches import over_ranks

TRAINING = Path(__file__).parents[1] / "training"


@over_ranks(TRAINING / "compression_on_ranks.py", sizes=[2], full=[3, 4], limit=600)
def test_a_fit_whose_gradients_travel_in_a_form(check):
    check()
