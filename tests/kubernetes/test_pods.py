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

TRAIN = """
import keras, numpy as np, easyscale

class Says(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, flush=True)

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("adam", "mse")
data = easyscale.shard(np.ones((64, 4), "float32"), np.ones((64, 2), "float32"))
callbacks = [easyscale.callbacks.Distribute("ring", checkpoint="run", every="60min"), Says()]
model.fit(*data, batch_size=easyscale.local_batch(8), epochs=10**6, verbose=0, callbacks=callbacks)
"""

pytestmark = [
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


@pytest.mark.full
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
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    said = sorted(line[line.index("rank ") :] for line in output.splitlines() if " in train-" in line)
    size = 2 * len(names)
    assert said == [f"rank {rank} of {size} in {names[rank // 2].partition('.')[0]}" for rank in range(size)], output


@pytest.mark.full
def test_ranks_of_other_pods_have_time_for_a_checkpoint_when_the_launcher_is_asked_to_end(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    names = ["train-worker-0.train.default.svc", "train-worker-1.train.default.svc"]
    with Pods(names, tmp_path) as pods:
        command = ["env", "-C", str(tmp_path), sys.executable, "-m", "easyscale", "launch", "-n", "2", str(script)]
        process = pods.start(0, command, **pipes)
        said = process.stdout.readline()
        process.terminate()
        output, errors = process.communicate(timeout=120)
    assert "epoch 0" in said, said + errors
    assert process.returncode == 75, output + errors
    assert any((tmp_path / "run").iterdir()), "there is no checkpoint but the last one"
