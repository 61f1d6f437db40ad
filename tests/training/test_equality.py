from pathlib import Path

from launches import over_ranks


@over_ranks(Path(__file__).with_name("equality_on_ranks.py"), sizes=[2, 3, 4], limit=240)
def test_ranks_take_the_steps_of_one_process(check):
    check()
