"""Jobs of Keras on JAX, started as a user starts them: what they need, and what is refused in one line."""

import pytest
from backend.shared.benched_jobs import check_a_bench
from backend.shared.resumed_jobs import check_a_checkpoint_of_tensorflow, check_a_restart
from backend.shared.verified_jobs import check_a_script_that_does_not_divide_its_batch, check_a_script_that_is_equal
from other_backends import BEGIN, JAX

# Here they may be installed. `None` in `sys.modules` would do but for who looks there for what has been imported.
WITHOUT = """
import sys
class Without:
    def find_spec(self, name, *arguments):
        if name in ("tensorflow", "torch"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Without())
"""


@pytest.mark.full
def test_a_job_needs_neither_tensorflow_nor_torch(job):
    script = (
        WITHOUT
        + BEGIN
        + """
fit(callbacks=[Distribute("ring")])
weights = easyscale.communicator.get().all_gather_object(model.get_weights()[0].tolist())
print(weights[0] == weights[1], keras.backend.backend(), flush=True)
"""
    )
    done = job(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.removeprefix("[1] ") for line in done.stdout.splitlines()] == ["True jax"] * 2


MISSING = {
    "Distribute(replication='in_graph')": "replication='in_graph'",
    "Distribute(model_parallel=easyscale.parallel.Pipeline(stages=2))": "`model_parallel`",
}


def test_what_jax_does_not_have_is_refused_before_training(job):
    script = BEGIN + "before = model.get_weights()[0]\n"
    for call in MISSING:
        script += f"model.compile('sgd', 'mse')\ntry:\n    {call}\nexcept ValueError as error:\n    print(error)\n"
    done = job(script + "assert (model.get_weights()[0] == before).all()")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[1]")]
    for line, feature in zip(lines, MISSING.values(), strict=True):
        assert line.startswith(f"{feature} needs another backend of Keras. Received: KERAS_BACKEND=jax. "), line


@pytest.mark.full
def test_asked_to_end_a_job_is_started_again_and_comes_to_the_same_weights(job, tmp_path):
    check_a_restart(job, tmp_path)


@pytest.mark.full
def test_a_checkpoint_of_tensorflow_goes_on(job, tmp_path):
    check_a_checkpoint_of_tensorflow(job, tmp_path)


VALIDATES = """
ways.append({"x": xs, "y": ys, "batch_size": batch, "validation_data": (xs, ys), "shuffle": False})
"""


@pytest.mark.full
def test_a_script_is_equal_to_one_process(tmp_path):
    check_a_script_that_is_equal(JAX, tmp_path, VALIDATES, fits=2)


@pytest.mark.full
def test_a_script_that_does_not_divide_its_batch_is_found(tmp_path):
    check_a_script_that_does_not_divide_its_batch(JAX, tmp_path)


@pytest.mark.full
def test_a_bench_of_training(tmp_path):
    check_a_bench(JAX, tmp_path)
