"""`run`: calls a function on several workers of a Ray cluster."""

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

    A placement group has a bundle of CPUs and GPUs for each worker, packed on as few nodes as possible. The first
    node's actor runs `easyscale launch`; its mpirun starts the workers of the other nodes through Ray instead of ssh.
    Workers exchange gradients by MPI, between the nodes' addresses in Ray. Their output is shown here. Ctrl-C ends
    them, and so does the end of this process.

    EasyScale, MPI and Keras must be installed at the same path on each node, as in a common image. Files that workers
    share, such as checkpoints, belong in a folder that all nodes can access.

    Args:
        function: Function. Called on each worker. It is sent by cloudpickle, with its arguments and the objects that it
            uses.
        *args: Arguments of the function.
        n: Int. The number of workers. Defaults to `None`: as many as the cluster has CPUs and GPUs for.
        cpus_per_worker: Int. CPUs that Ray reserves for each worker. Defaults to `1`.
        gpus_per_worker: Int. GPUs that Ray reserves for each worker, the only ones that it sees. Defaults to `0`.
        timeout: Float. Seconds to wait for resources that are in use. Defaults to `60.0`.
        **options: The options of `easyscale launch`, with underscores, except those that name hosts.

    Returns:
        The return value of the function on the chief, which must be picklable.

    Raises:
        ValueError: If an option is wrong, or the cluster does not have as many CPUs or GPUs.
        TypeError: If `function` is not callable, or it or an argument cannot be pickled.
        LaunchError: If Ray is missing, this process is itself a worker, or the resources do not become free in time.
        WorkerError: If a worker ends without an exception.
        Exception: The function's exception on a worker; see `easyscale.run`.

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
    """Yield the workers' output until they end. An interrupt is forwarded to them, and raised after their end."""
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
