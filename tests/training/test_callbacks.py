from pathlib import Path

from launches import over_ranks


@over_ranks(Path(__file__).with_name("callbacks_on_ranks.py"), sizes=[3], limit=300)
def test_callbacks_do_on_several_processes_what_they_do_on_one(check):
    check()
