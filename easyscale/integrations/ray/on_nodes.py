"""A function on several workers of a Ray cluster."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from easyscale.errors import LaunchError, WorkerError
from easyscale.integrations.ray.hosts import Hosts
from easyscale.running import options as of_launch
from easyscale.running.calling import call_of, check
from easyscale.running.job import write
from easyscale.running.outcome import result_of

__all__ = ["run"]


def run(
    function: Callable[..., Any],
    *args: Any,
    n: int | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: int = 0,
    timeout: float = 60.0,
    **options: Any,
) -> Any:
    """Call `function(*args)` on `n` workers on the nodes of a Ray cluster, and return what the chief's call returns.

    A placement group has a bundle of CPUs and GPUs for each worker, on as few nodes as there is room on. On each node
    an actor starts the workers: the first by `easyscale launch`, and mpirun starts those of the others through Ray,
    where it would use ssh. Workers exchange gradients by MPI, between the addresses that Ray has of the nodes. What
    they write is shown here; Ctrl-C ends them, and so does the end of this process.

    EasyScale, its MPI and Keras must be installed on each node at the same place, as in one image. Files that workers
    have in common, such as checkpoints, belong in a folder that all nodes see.

    Args:
        function: Function. Called on each worker. It travels by cloudpickle, with its arguments and what it uses.
        *args: What it is called with.
        n: Int. The number of workers. Defaults to `None`: as many as the cluster has CPUs, and GPUs, for.
        cpus_per_worker: Int. How many CPUs Ray reserves for each worker. Defaults to `1`.
        gpus_per_worker: Int. How many GPUs Ray reserves for each worker, which sees these. Defaults to `0`: it sees
            none.
        timeout: Float. Seconds to wait for those that others have now. Defaults to `60.0`.
        **options: The options of `easyscale launch`, with underscores, but for those that name hosts.

    Returns:
        What the function returns on the chief, if it can be pickled.

    Raises:
        ValueError: If an option is wrong, or the cluster has not so many CPUs or GPUs.
        TypeError: If the function is none, or it or an argument cannot be pickled.
        LaunchError: If there is no Ray; if this process is a worker itself; if they have not become free in time.
        WorkerError: If a worker has ended otherwise than by an exception.
        Exception: What the function has raised on a worker; see `easyscale.run`.

    Example:

    >>> model = easyscale.integrations.ray.run(train, 3, n=4, exchange="ring")

    Reference: Moritz et al., "Ray: a distributed framework for emerging AI applications", 2018.
    """
    check(function)
    for name in ("hosts", "hostfile"):
        if name in options:
            raise ValueError(f"Ray has hosts. Received: {name}={options[name]!r}. Leave `{name}` out")
    line = of_launch.arguments(None, options, besides=["cpus_per_worker", "gpus_per_worker", "timeout"])
    call = call_of(function, args, options)
    ray = _ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    with Hosts(ray, n, cpus_per_worker, gpus_per_worker, timeout) as hosts:
        hosts.give(call)
        line = ["-n", str(hosts.workers), "--hosts", str(hosts), *line]
        try:
            hosts.check(line)
            for name, text in _output(ray, hosts, line):
                write(name, text)
            (code, errors), (failures, result) = hosts.ending(), hosts.outcome()
        except ray.exceptions.RayActorError as error:
            raise WorkerError(
                f"all workers must come to the end of `function`. Received: the end of a node's actor, "
                f"{' '.join(str(error).split())}"
            ) from None
    return result_of(code, failures, result, errors, hosts.workers)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise LaunchError(
            f"workers on a Ray cluster need Ray. Received: {error}. Install it: pip install 'easyscale[ray]'"
        ) from None


def _output(ray: Any, hosts: Hosts, line: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what the workers write until they end. An interrupt is passed on, and raised when they have."""
    interrupt: KeyboardInterrupt | None = None
    stream = hosts.start(line)
    while True:
        try:
            yield ray.get(next(stream))
        except StopIteration:
            break
        except KeyboardInterrupt as error:
            interrupt = error
            hosts.interrupt()
    if interrupt is not None:
        raise interrupt
