"""Every update there is, on real processes."""

from pathlib import Path

from launches import over_ranks


@over_ranks(Path(__file__).with_name("conformance_on_ranks.py"), sizes=[], full=[2], limit=300)
def test_an_update_is_another_way_to_the_same_steps(check):
    check()
