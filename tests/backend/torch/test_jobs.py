"""Jobs of Keras on PyTorch, started as a user starts them: what they need, and what is refused in one line."""

import pytest
from backend.shared.benched_jobs import check_a_bench
from backend.shared.resumed_jobs import check_a_checkpoint_of_tensorflow, check_a_restart
from backend.shared.verified_jobs import check_a_script_that_does_not_divide_its_batch, check_a_script_that_is_equal
from other_backends import BEGIN, TORCH


@pytest.mark.full
def test_a_job_needs_no_tensorflow(job):
    script = "import sys; sys.modules['tensorflow'] = None\n" + BEGIN
    script += """
fit(callbacks=[easyscale.callbacks.Distribute("ring")])
weights = easyscale.communicator.get().all_gather_object(model.get_weights()[0].tolist())
print(weights[0] == weights[1], keras.backend.backend(), flush=True)
"""
    done = job(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.removeprefix("[1] ") for line in done.stdout.splitlines()] == ["True torch"] * 2


REFUSED = {
    "Distribute(replication='in_graph')": (
        "replication='in_graph' needs another backend of Keras. Received: KERAS_BACKEND=torch. Use 'between_graph', "
        "or set KERAS_BACKEND=tensorflow"
    ),
    "Distribute(model_parallel=easyscale.parallel.Pipeline(stages=2))": (
        "`model_parallel` needs another backend of Keras. Received: KERAS_BACKEND=torch. Leave `model_parallel` out, "
        "or set KERAS_BACKEND=tensorflow"
    ),
}


def test_what_torch_does_not_have_is_refused_before_training(job):
    script = BEGIN + "before = model.get_weights()[0]\n"
    for call in REFUSED:
        script += f"model.compile('sgd', 'mse')\ntry:\n    {call}\nexcept ValueError as error:\n    print(error)\n"
    script += "assert (model.get_weights()[0] == before).all()"
    done = job(script)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("[1]")] == list(REFUSED.values())


@pytest.mark.full
def test_a_job_that_is_refused_ends_with_one_line(job):
    done = job(BEGIN + "import os; os.environ['KERAS_BACKEND'] = 'tensorflow'; easyscale.callbacks.Distribute()")
    error = (
        "EasyScaleError: KERAS_BACKEND must be set before Keras is imported. Received: KERAS_BACKEND=tensorflow and a "
        "Keras that uses 'torch'. Set it where the script is started: KERAS_BACKEND=tensorflow easyscale launch -n 2 "
        "train.py"
    )
    lines = [line.removeprefix("[1] ").partition(" (/")[0] for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert error in lines
    assert [line for line in lines if line != error and not line.startswith("easyscale: rank")] == []


@pytest.mark.full
def test_an_error_is_shown_also_with_a_process_group(job, tmp_path):
    """PyTorch collects what is shown, to write it when the process would go on."""
    script = (
        BEGIN
        + f"""
import torch
here = {{"rank": easyscale.rank(), "world_size": easyscale.size(), "init_method": "file://{tmp_path / "group"}"}}
torch.distributed.init_process_group("gloo", **here)
fit(callbacks=[easyscale.callbacks.Distribute("ring")])
"""
    )
    done = job(script)
    assert done.returncode == 1
    assert "`torch.distributed` must not be initialised" in done.stderr, done.stderr


@pytest.mark.full
def test_ranks_with_different_backends_are_told_so(job):
    script = "import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1': os.environ['KERAS_BACKEND'] = 'tensorflow'\n"
    done = job(script + BEGIN + "fit(callbacks=[easyscale.callbacks.Distribute('ring')])")
    assert done.returncode == 1
    rule = "DesyncError: all ranks must use the same exchange, replication, update, compression, bucket_bytes and "
    received = "['ring', 'between_graph', 'auto', None, None, 'torch'] on rank 0, "
    assert rule + "Keras backend. Received: " + received in done.stderr and "'tensorflow'] on rank 1" in done.stderr


SHUFFLES = """
import torch
data = torch.utils.data.TensorDataset(torch.from_numpy(xs), torch.from_numpy(ys))
ways.append({"x": torch.utils.data.DataLoader(data, batch, shuffle=True)})
"""


@pytest.mark.full
def test_a_script_is_equal_to_one_process(tmp_path):
    check_a_script_that_is_equal(TORCH, tmp_path, SHUFFLES, fits=2)


@pytest.mark.full
def test_a_script_that_does_not_divide_its_batch_is_found(tmp_path):
    check_a_script_that_does_not_divide_its_batch(TORCH, tmp_path)


@pytest.mark.full
def test_asked_to_end_a_job_is_started_again_and_comes_to_the_same_weights(job, tmp_path):
    check_a_restart(job, tmp_path)


@pytest.mark.full
def test_a_checkpoint_of_tensorflow_goes_on(job, tmp_path):
    check_a_checkpoint_of_tensorflow(job, tmp_path)


@pytest.mark.full
def test_a_bench_of_training(tmp_path):
    check_a_bench(TORCH, tmp_path)
