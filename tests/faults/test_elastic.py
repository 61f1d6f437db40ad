"""Workers of an elastic job are replaced, and what cannot go on ends the job and says so."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness  # noqa: E402


@pytest.mark.full
@pytest.mark.parametrize("update", [pytest.param("replicated", marks=pytest.mark.full), "sharded"])
def test_workers_that_are_killed_are_replaced_until_replacements_fail(tmp_path, update):
    script = Path(__file__).with_name("replaced.py")
    options = ["-n", "3", "--elastic", "--respawn", "--spares", "5"]
    done = harness.launch(script, [str(tmp_path), update], tmp_path, *options, limit=350)
    assert (done.code, done.orphans, done.left) == (0, [], []), done.output + done.errors

    chief, newcomer = (json.loads((tmp_path / f"end-{rank}.json").read_text()) for rank in (0, 2))
    assert not (tmp_path / "end-1.json").exists()
    first = newcomer["epochs"][0]
    assert chief["workers"][:first] == [2.0] * first, "without rank 2 from the first step on"
    lost = chief["workers"].index(2.0, first)
    assert chief["workers"][first:lost] == [3.0] * (lost - first) and lost - first >= 2
    assert set(chief["workers"][lost:]) == {2.0}
    assert newcomer["epochs"] == chief["epochs"][first:], "its History begins with the epoch at which it joined"
    for name in ("workers", "loss"):
        assert newcomer[name] == chief[name][first:]
    for name in ("rate", "best", "weights", "rows"):
        assert newcomer[name] == chief[name], name

    said = [line for line in done.output.splitlines() if line.startswith("EasyScale: ")]
    said = [line for line in said if ", exchange " not in line]  # of each `fit()`, how it is distributed
    assert "3 workers go on" not in done.output
    assert said[0].startswith("EasyScale: step 1 lost rank 2; 2 workers go on. Its part of the data, 1/3 of each step")
    assert said[0].endswith("is divided among them")
    assert said[1] == f"EasyScale: epoch {first + 1} begins with 3 workers: rank 2 has been replaced"
    assert said[-1] == (
        "EasyScale: ranks that fail are not replaced any more: 3 replacements in a row have failed before they had "
        "joined"
    )
    told = [line for line in done.errors.splitlines() if line.startswith("easyscale: ")]
    assert [line.partition("; ")[2] for line in told[:2]] == ["2 of 3 workers are left"] * 2
    assert len(told) == 5, told
    assert all(line.endswith(" ended by an exception before it had joined the others") for line in told[2:]), told
    assert done.errors.count("[1] ArithmeticError: whoever replaces rank 1 fails") == 2, "marked with its rank"


def test_a_script_ends_an_elastic_job_by_its_exit_code(tmp_path):
    script = Path(__file__).with_name("sums.py")
    done = harness.launch(script, ["exit3", str(tmp_path)], tmp_path, "-n", "3", "--elastic")
    assert (done.code, done.orphans, done.left) == (3, [], []), done.errors
    assert "ended with exit code 3 while other ranks still needed it" in done.errors.splitlines()[-1]
