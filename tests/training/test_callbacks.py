from pathlib import Path

from launches import over_ranks

HERE = Path(__file__).parent


@over_ranks(HERE / "writers_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_files_are_those_of_one_process_and_written_once(check):
    check()


@over_ranks(HERE / "decisions_on_ranks.py", sizes=[2], full=[3], limit=600)
def test_decisions_hold_on_all_processes(check):
    check()
