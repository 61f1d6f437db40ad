"""Resources reserved by Ray: the nodes on which workers run, with an actor on each."""

import contextlib
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from easyscale.errors import LaunchError
from easyscale.integrations.ray.node import Node, Reserved
from easyscale.running.folder import Call, Failure

__all__ = ["Hosts"]

_CALLS = 16  # concurrent calls of an actor: the launcher, an interrupt, and commands of mpirun


class Hosts:
    """A context in which CPUs and GPUs of a cluster are reserved for workers, with an actor on each node.

    Nodes with the same address, as in a cluster that Ray emulates on one host, are one host.

    Args:
        ray: The module `ray`, connected to the cluster.
        workers: Int. The number of workers; `None` for as many as the cluster has room for.
        cpus: Int. CPUs per worker.
        gpus: Int. GPUs per worker.
        timeout: Float. Seconds to wait for resources that are in use.

    Attributes:
        workers: Int. The number of workers.

    Raises:
        ValueError: If the cluster does not have as many CPUs or GPUs.
        LaunchError: If they do not become free in time.
    """

    def __init__(self, ray: Any, workers: int | None, cpus: int, gpus: int, timeout: float):
        self._ray, self._cpus, self._gpus, self._timeout = ray, cpus, gpus, timeout
        _check_counts(cpus_per_worker=cpus, **({} if workers is None else {"n": workers}))
        _check_counts(least=0, gpus_per_worker=gpus)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"`timeout` must be seconds, more than 0. Received: timeout={timeout!r}. Use such as 60.0")
        self._each = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
        self.workers = self._checked(workers)
        self._token = secrets.token_hex(8)
        self._slots: Counter[str] = Counter()
        self._nodes: dict[str, Any] = {}  # actors by address; the first one runs the launcher
        self._reserved: list[tuple[str, Any]] = []  # address, and actor that holds one other worker's GPUs

    def _checked(self, workers: int | None) -> int:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(name, 0.0) // count) for name, count in self._each.items()) for node in nodes)
        if room < (workers or 1):
            raise ValueError(
                f"a Ray cluster must have {self._kinds} for all workers. Received: n={workers} with {self._amount}, "
                f"and {room} such on {len(nodes)} nodes. Lower `n` or what each has, or add nodes: "
                "ray start --address=..."
            )
        return workers or room

    @property
    def _kinds(self) -> str:
        return " and ".join(f"{name}s" for name in self._each)

    @property
    def _amount(self) -> str:
        return f"{' and '.join(f'{count} {name}' for name, count in self._each.items())} each"

    def __enter__(self) -> "Hosts":
        ray = self._ray
        self._group = ray.util.placement_group([self._each] * self.workers, strategy="PACK")
        try:
            if not self._group.wait(self._timeout):
                has = ray.available_resources()
                free = " and ".join(f"{has.get(name, 0.0):g} {name}" for name in self._each)
                raise LaunchError(
                    f"the {self._kinds} of all workers must become free within {self._timeout:g} s. Received: "
                    f"{self.workers} workers with {self._amount}, {free} free. End what has them (ray status), lower "
                    "`n`, or raise `timeout`"
                )
            addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
            bundles = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
            places = [addresses[bundles[bundle]] for bundle in range(self.workers)]
            self._slots = Counter(places)  # in the order of each host's first bundle
            for bundle, address in enumerate(places):
                if address not in self._nodes:
                    self._nodes[address] = self._actor(bundle, address)
                elif self._gpus:
                    self._reserved.append((address, self._in_bundle(Reserved, bundle, num_cpus=0).remote()))
            self._wait([node.ready.remote() for node in self._nodes.values()])
            self._show_gpus()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self._nodes.values():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(node.close.remote())
            self._ray.kill(node)
        for _, reserved in self._reserved:
            self._ray.kill(reserved)
        self._ray.util.remove_placement_group(self._group)

    def _actor(self, bundle: int, address: str) -> Any:
        options: dict[str, Any] = {"num_cpus": self._cpus, "max_concurrency": _CALLS}
        options |= {"name": Node.name_of(self._token, address), "namespace": Node.NAMESPACE}
        path = f"{tempfile.gettempdir()}/.easyscale-ray-{self._token}"  # the same on all nodes, as in all ranks' argv
        return self._in_bundle(Node, bundle, **options).remote(path, self._cpus)

    def _in_bundle(self, kind: type, bundle: int, **options: Any) -> Any:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=bundle
        )
        return self._ray.remote(kind).options(num_gpus=self._gpus, scheduling_strategy=strategy, **options)

    def _show_gpus(self) -> None:
        """Make the GPUs of all workers of a node visible to each of them; they divide them by local rank."""
        for address, node in self._nodes.items():
            beside = [reserved for where, reserved in self._reserved if where == address]
            found = self._wait([one.gpus.remote() for one in (node, *beside)])
            self._wait([node.see.remote([number for numbers in found for number in numbers])])

    def __str__(self) -> str:
        """The hosts in the format of `easyscale launch --hosts`."""
        return ",".join(f"{address}:{slots}" for address, slots in self._slots.items())

    def give(self, call: Call) -> None:
        """Write the call for the workers of every node."""
        for node in self._nodes.values():  # one by one: they may share a file system
            self._wait([node.give.remote(tuple(call))])

    def check(self, line: list[str]) -> None:
        """Check these options on the node on which `easyscale launch` will run; raise its errors."""
        self._wait([self._first.check.remote(line)])

    def start(self, line: list[str]) -> Iterator[Any]:
        """Start the workers; return an iterator over references to their output."""
        return self._first.show.options(num_returns="streaming").remote(line, self._token)

    def interrupt(self) -> None:
        """Interrupt the workers as Ctrl-C does; a second call ends them at once."""
        self._first.interrupt.remote()

    def outcome(self) -> tuple[list[Failure], bytes | None]:
        """Return the function's failures on all workers, and its pickled result on the chief."""
        found = self._wait([node.outcome.remote() for node in self._nodes.values()])
        failures = sorted((Failure(*one) for own, _ in found for one in own), key=Failure.order)
        return failures, next((result for _, result in found if result is not None), None)

    def ending(self) -> tuple[int, str]:
        """Return the exit code of the launcher and the end of its stderr."""
        return self._wait([self._first.ending.remote()])[0]

    @property
    def _first(self) -> Any:
        return next(iter(self._nodes.values()))

    def _wait(self, references: list[Any]) -> list[Any]:
        try:
            return self._ray.get(references)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None


def _check_counts(least: int = 1, **counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            must = "a positive number of them" if least else "a number of them, from 0"
            raise ValueError(f"`{name}` must be {must}. Received: {name}={value!r}")
