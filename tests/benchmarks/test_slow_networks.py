"""The benchmark of slow networks runs, and a line that is slowed down takes as long as an emulated one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import slow_networks  # noqa: E402
import two_hosts  # noqa: E402

SUMS = Path(__file__).with_name("seconds_of_sums.py")
EASYSCALE = str(Path(sys.executable).with_name("easyscale"))


@pytest.mark.full
def test_rows_run(tmp_path):
    file = tmp_path / "found.json"
    options = ["--quick", "--only", "bytes,pack,1gbit,digits", "--network", "throttle", "--json", str(file)]
    done = subprocess.run([sys.executable, slow_networks.__file__, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    for row in list(found["bytes"].values())[1:]:
        assert row["part"] == pytest.approx(row["said"], rel=0.01)
    assert set(found["pack"]) == {"copy", "bf16", "fp16", "int8", "one_bit", "top_k"}
    assert list(found["1gbit"]) == slow_networks.FASTEST
    assert found["1gbit"]["int8"]["bytes"] < found["1gbit"]["none"]["bytes"]
    assert 0 < found["digits"]["int8"]["accuracy"] <= 1
    assert "| int8 |" in done.stdout


def test_a_row_that_there_is_not_is_told():
    done = subprocess.run([sys.executable, slow_networks.__file__, "--only", "1tbit"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--only must be of ['bytes', 'pack', '100mbit', '1gbit', " in done.stderr


def test_a_table_has_a_row_for_each_way():
    found = {"none": {"bytes": 1234, "part": 1.0}, "fp16": {"bytes": 617, "part": 0.5}}
    assert slow_networks.show("bytes", found) == [
        "| bytes | bytes | part |",
        "|---|---|---|",
        "| none | 1,234 | 1 |",
        "| fp16 | 617 | 0.5 |",
    ]


@pytest.mark.full
@pytest.mark.skipif(not two_hosts.Hosts.are_possible(), reason="needs root, and namespaces, iproute2 and util-linux")
def test_a_line_that_is_slowed_down_takes_as_long_as_a_link_of_that_rate():
    """4 MB in each direction at 20 Mbit/s: 1.6 s, of which a bucket of the link's queue takes 0.1 off."""
    shaped = _found(two_hosts.run(str(SUMS), [], "20mbit", "off"))
    launch = [EASYSCALE, "launch", "-n", "2", "--bandwidth", "20Mbit", str(SUMS)]
    slowed = _found(subprocess.run(launch, capture_output=True, text=True, check=True).stdout.splitlines())
    assert slowed >= 1.6
    assert shaped == pytest.approx(slowed, rel=0.2)


def _found(lines):
    return float(next(line for line in lines if line.startswith("found ")).removeprefix("found "))
