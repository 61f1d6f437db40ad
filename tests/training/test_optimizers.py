from pathlib import Path

from launches import over_ranks


@over_ranks(Path(__file__).with_name("optimizers_on_ranks.py"), sizes=[2, 3])
def test_optimizers_of_keras_see_the_mean_gradient(check):
    check()
