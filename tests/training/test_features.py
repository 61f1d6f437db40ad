from pathlib import Path

from launches import over_ranks


@over_ranks(Path(__file__).with_name("features_on_ranks.py"), sizes=[2, 3], limit=300)
def test_what_keras_users_do_works_on_several_processes(check):
    check()
