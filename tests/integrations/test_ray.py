"""`easyscale.integrations.ray.run`: on two nodes of a real Ray, and what it refuses."""

import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ray_cluster import Cluster, Hosts  # noqa: E402

import easyscale.integrations.ray  # noqa: E402
from easyscale.errors import LaunchError  # noqa: E402

pytest.importorskip("ray", reason="needs Ray: pip install 'easyscale[ray]'")
pytestmark = [pytest.mark.xdist_group("ray")]
needs_hosts = pytest.mark.skipif(not Hosts.are_possible(), reason="needs root, for network namespaces")


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def script(tmp_path):
    """Return the path of a script with these lines, which calls `run`."""

    def write(lines):
        path = tmp_path / "script.py"
        path.write_text("import easyscale\nfrom easyscale.integrations.ray import run\n\n" + textwrap.dedent(lines))
        return str(path)

    return write


@pytest.mark.full
@needs_hosts
def test_workers_are_on_all_nodes_and_take_the_steps_of_one_process(cluster, script):
    done = cluster.run(
        [
            script("""
            def train(samples):
                import keras
                import numpy as np

                keras.utils.set_random_seed(1)
                generator = np.random.default_rng(0)
                x, y = generator.normal(size=(samples, 8)).astype("float32"), generator.integers(0, 3, samples)
                layers = [keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)]
                model = keras.Sequential(layers)
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
                callbacks = [easyscale.callbacks.Distribute("ring")]
                options = {"batch_size": easyscale.local_batch(24), "shuffle": False, "verbose": 0}
                model.fit(*easyscale.shard(x, y), epochs=2, callbacks=callbacks, **options)
                comm = easyscale.communicator.get()
                return comm.all_gather_object(comm.host), model.get_weights()

            where, weights = run(train, 48, exchange="ring")
            _, alone = run(train, 48, n=1)
            print(*where, max(abs(a - b).max() for a, b in zip(weights, alone, strict=True)) <= 1e-5)
            """)
        ],
        timeout=150,
    )
    *where, is_equal = done.stdout.split()[-5:]
    assert is_equal == "True" and "".join(where) in ("node0node0node1node1", "node1node1node0node0"), (
        done.stdout + done.stderr
    )


@pytest.mark.full
@needs_hosts
def test_each_worker_sees_the_gpus_that_are_reserved_for_it(cluster, script):
    done = cluster.run(
        [
            script("""
            import os

            def sees():
                print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)

            run(sees, n=4, gpus_per_worker=1)  # the cluster says that it has them
            run(sees, n=2, gpus_per_worker=2)
            run(sees, n=1)
            try:
                run(sees, n=2, gpus_per_worker=3)
            except ValueError as error:
                print(error)
            """)
        ],
        timeout=150,
    )
    *shown, refused = done.stdout.splitlines()
    assert refused == (
        "a Ray cluster must have CPUs and GPUs for all workers. Received: n=2 with 1 CPU and 3 GPU each, and 0 such on "
        "2 nodes. Lower `n` or what each has, or add nodes: ray start --address=..."
    ), done.stderr
    seen = [line.partition("] ")[2] or line for line in shown]
    assert (sorted(seen[:4]), seen[4:]) == (["0", "0", "1", "1"], ["0,1", "0,1", ""]), done.stderr


@pytest.mark.full
@needs_hosts
def test_output_streams_and_the_exception_of_a_worker_on_another_node_is_raised(cluster, script):
    done = cluster.run(
        [
            script("""
            def fails():
                print("rank", easyscale.rank())
                if easyscale.rank() == 3:
                    raise KeyError("on purpose")
                easyscale.communicator.get().barrier()

            try:
                run(fails, n=4)
            except KeyError as error:
                print(repr(error), error.__cause__.rank, "in fails" in str(error.__cause__))
            """)
        ],
        timeout=100,
    )
    *shown, last = done.stdout.splitlines()
    assert last == "KeyError('on purpose') 3 True", done.stdout + done.stderr
    assert sorted(line.partition("rank ")[2] for line in shown) == ["0", "1", "2", "3"]


@pytest.mark.full
@needs_hosts
def test_cpus_that_others_have_and_what_the_launcher_refuses_are_one_line_each(cluster, script):
    done = cluster.run(
        [
            script("""
            import ray

            ray.init(log_to_driver=False)

            def refused(*args, **options):
                try:
                    run(*args, **options)
                except Exception as error:
                    print(type(error).__name__, error)

            refused(print, n=5)
            refused(print, cpus_per_worker=3)
            refused(print, timeout="x")
            refused(print, n=2, min_workers=2)
            group = ray.util.placement_group([{"CPU": 2}])
            ray.get(group.ready())
            refused(print, n=3, timeout=1)
            """)
        ],
        timeout=100,
    )
    many, wide, late, alone, busy = done.stdout.splitlines()
    rule = "ValueError a Ray cluster must have CPUs for all workers. Received: "
    assert many.startswith(f"{rule}n=5 with 1 CPU each, and 4 such on 2 nodes. ")
    assert wide.startswith(f"{rule}n=None with 3 CPU each, and 0 such on 2 nodes. ")
    assert late == "ValueError `timeout` must be seconds, more than 0. Received: timeout='x'. Use such as 60.0"
    assert alone.startswith("ValueError ") and "--min-workers" in alone
    assert busy.startswith(
        "LaunchError the CPUs of all workers must become free within 1 s. Received: 3 workers with 1 CPU "
        "each, 2 CPU free. "
    )


@pytest.mark.full
@needs_hosts
def test_nothing_stays_behind_a_driver_that_is_killed(cluster, script):
    driver = cluster.start(
        [
            script("""
            def waits():
                import time

                print("up", flush=True)
                time.sleep(300)

            run(waits, n=4)
            """)
        ]
    )
    shown = [driver.stdout.readline() for _ in range(4)]
    assert all("up" in line for line in shown)
    driver.kill()
    driver.wait()
    end = time.monotonic() + 120
    while (left := _of_runs()) and time.monotonic() < end:
        time.sleep(0.2)
    assert not left


def _of_runs():
    """The workers of a `run`, and its folders."""
    import psutil

    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if ".easyscale-ray-" in line]


def test_without_ray_or_with_hosts_or_what_cannot_travel_it_is_one_line(monkeypatch):
    run = easyscale.integrations.ray.run
    with pytest.raises(TypeError, match=r"^`function` must be a function\. Received: int\. Write"):
        run(3)
    with pytest.raises(ValueError, match=r"^Ray has hosts\. Received: hosts='a:2'\. Leave `hosts` out$"):
        run(print, hosts="a:2")
    with pytest.raises(TypeError, match=r"must be something that can be pickled\. Received: print"):
        run(print, threading.Lock())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        LaunchError, match=r"^workers on a Ray cluster need Ray\. Received: .*\. Install it: pip install"
    ):
        run(print)
