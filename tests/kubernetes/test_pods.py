"""`easyscale launch` in the pod of a launcher, which runs no rank. Pods are emulated hosts with the names of pods."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from hosts import Hosts  # noqa: E402

WHERE = """
import os, easyscale
ranks = easyscale.communicator.get().all_gather_object(easyscale.rank())
print("rank", easyscale.rank(), "of", len(ranks), "in", os.uname().nodename)
"""

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Hosts.are_possible(), reason="needs root, and Linux's namespaces, iproute2 and util-linux"),
]


class Pods(Hosts):
    """A launcher and some workers. A pod knows its own name without the domain by which others know it.

    Args:
        names: List of the names of workers, as in the file of hosts.
        folder: Where the file is written.
    """

    def __init__(self, names, folder):
        super().__init__(len(names) + 1)
        self.names = ["train-launcher", *names]
        self._file = folder / "hostfile"
        self._file.write_text("".join(f"{name} slots=2\n" for name in names))

    def __enter__(self):
        super().__enter__()
        for keeper, name in zip(self._keepers, self.names, strict=True):
            self._run(keeper, f"hostname {name.partition('.')[0]}")
        self.environment |= {
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "OMPI_MCA_orte_default_hostfile": str(self._file),
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_set_default_slots": "2",
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        }
        return self


@pytest.mark.parametrize(
    "names",
    [
        ["train-worker-0.train.default.svc", "train-worker-1.train.default.svc"],
        ["train-node-0-0.train", "train-node-0-1.train"],
        ["train-worker-0.train.default.svc"],
    ],
    ids=["MPIJob", "TrainJob", "one worker"],
)
def test_ranks_run_on_the_workers_and_none_in_the_pod_of_the_launcher(tmp_path, names):
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Pods(names, tmp_path) as pods:
        process = pods.start(0, [sys.executable, "-m", "easyscale", "launch", str(script)], **pipes)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors
    said = sorted(line[line.index("rank ") :] for line in output.splitlines() if " in train-" in line)
    size = 2 * len(names)
    assert said == [f"rank {rank} of {size} in {names[rank // 2].partition('.')[0]}" for rank in range(size)], output
