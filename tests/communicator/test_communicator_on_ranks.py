from pathlib import Path

from launches import over_ranks


@over_ranks(Path(__file__).with_name("communicator_on_ranks.py"), sizes=[1, 2, 3, 4])
def test_communicator_between_processes(check):
    check()
