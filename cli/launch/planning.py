"""Turns the options of `easyscale launch` into a plan, and rejects invalid combinations."""

import math
import os
import secrets
import sys
from dataclasses import dataclass, replace

import click

from easyscale import run_module, visible_gpus
from easyscale.cli.launch import allocations
from easyscale.cli.launch import script as scripts
from easyscale.cli.launch.containers import ControlGroup
from easyscale.cli.launch.hosts import Host
from easyscale.cli.launch.plan import LaunchPlan
from easyscale.cli.launch.worker import threads_of_rank
from easyscale.cli.options import check_network, check_servers, check_writable, parse, parse_hosts
from easyscale.errors import LaunchError
from easyscale.quantities import parse_steps
from easyscale.settings import Devices, Settings

__all__ = ["LaunchOptions", "plan"]

_AUTO = "easyscale.auto.script"
_MOST = 1_000_000  # ranks; above this it is a typo, and listing all ranks would take forever


@dataclass(frozen=True)
class LaunchOptions:
    """The options of `easyscale launch`, as its help describes them; `ranks` is `-n`."""

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    auto: bool = False
    ranks: int | str | None = None
    exchange: str | None = None
    replication: str | None = None
    compression: str | None = None
    devices: str | None = None
    servers: int = 0
    elastic: bool = False
    min_workers: int | None = None
    elastic_batch: str | None = None
    respawn: bool = False
    spares: int | None = None
    hosts: str | None = None
    hostfile: str | None = None
    stall_timeout: float | None = None
    restarts: int = 0
    resume: str | None = None
    onednn: str | None = None
    bandwidth: str | None = None
    latency: str | None = None
    log_dir: str | None = None
    shown: str | None = None
    profile: bool = False
    trace: str | None = None
    trace_steps: str | None = None


def plan(options: LaunchOptions) -> LaunchPlan:
    """Return the launch plan for these options.

    Raises:
        click.UsageError: If an option is invalid, or conflicts with another.
        LaunchError: If the job needs MPI, and there is none.
    """
    cores = len(os.sched_getaffinity(0))
    most = threads_of_rank(cores, ControlGroup().cores, 1)  # one per core, within the container's CPU limit
    hosts = counted = parse_hosts(options.hosts, options.hostfile)
    more = "Give the hosts more slots"
    if not hosts and (allocation := allocations.find()) is not None:
        counted, more = allocation.hosts(), allocation.more
        hosts = allocation.named(counted)
    said = Settings.read()
    bandwidth, latency = _network(options, said)
    replication, devices = _devices(options, said)
    ranks = _number(options.ranks, bool(hosts))
    if replication == "in_graph" and devices is None:
        if hosts or options.servers:
            given = "--servers" if options.servers else "hosts"
            raise click.UsageError(
                f"one process that drives all devices is on one host and has no servers. Received: {given}. "
                "Say how many devices each process drives: --devices D"
            )
        devices, ranks = Devices(_workers(ranks, 0, counted, most, more)), 1
    workers = _workers(ranks, options.servers, counted, most, more)
    flag = options.replication or (None if said.replication else replication)
    ranks = workers + options.servers
    own = scripts.settings(said, options.exchange, flag, options.servers, devices, ranks, options.compression)
    own = replace(
        own,
        elastic=_least(options, workers, bool(hosts)),
        elastic_batch=_elastic_batch(options, said),
        spares=_spares(options, workers, bool(hosts)),
        stall_timeout=_stall_timeout(options, said),
        onednn=options.onednn or said.onednn,
        resume=said.resume if options.resume is None else _resume(options.resume),
        bandwidth=bandwidth,
        latency=latency,
    )
    own = _recorded(options, own, said, ranks)
    start = scripts.start(options.script, options.module) + list(options.arguments)
    if options.auto:
        _check_auto(options, own)
    if options.auto and workers > 1:  # a single worker runs the script unchanged
        own, start = replace(own, auto=secrets.randbits(31)), [*run_module.command(_AUTO)[1:], *start]
    shown = _shown(options.shown, ranks + own.spares)
    if options.log_dir == "":
        raise click.UsageError("--log-dir must be a folder. Received: --log-dir ''. Name one, or leave it out")
    if ranks == 1 and not hosts and not options.restarts and options.log_dir is None:
        return LaunchPlan(own, (sys.executable, *start))

    from easyscale.cli.launch import job, limits, runtimes

    mpi = runtimes.find()
    limits.check(ranks + own.spares, on_this_host=not hosts)

    def on(hosts: list[Host], workers: int) -> LaunchPlan:
        ranks = workers + own.servers + own.spares
        program, *rest = mpi.command(ranks, job.worker_command(start), hosts, own.variables(), cores)
        return LaunchPlan(
            own,
            (program, *(mpi.elastic_flags() if options.elastic else []), *rest),
            mpi,
            workers,
            tuple(hosts),
            options.restarts,
            options.log_dir,
            shown,
        )

    def on_those_left(left: list[Host]) -> LaunchPlan:
        slots = sum(host.slots for host in left) - own.servers
        if slots < (options.min_workers or 1):
            raise LaunchError(
                f"a job must have as many workers as --min-workers says, {options.min_workers}. Received: slots for "
                f"{max(0, slots)} on the hosts that answer. Use --resume when the others are there again"
            )
        return on(left, min(workers, slots))

    planned = on(hosts, workers)
    if options.min_workers is not None and not options.elastic:
        return replace(planned, on_those_left=on_those_left)
    return planned


def _number(ranks: int | str | None, has_hosts: bool) -> int | None:
    """Return the number of workers that `-n` asks for; `None` for one on each slot, or core."""
    if ranks is None or isinstance(ranks, int):
        return ranks
    if ranks == "auto":
        return None
    if has_hosts:
        raise click.UsageError("-n gpu counts the GPUs of this machine. Received: -n gpu and hosts. Use -n auto")
    if not (gpus := visible_gpus.found(os.environ)):
        raise click.UsageError("-n gpu needs a GPU. Received: a machine without one, or none in CUDA_VISIBLE_DEVICES")
    return len(gpus)


def _network(options: LaunchOptions, said: Settings) -> tuple[str | None, str | None]:
    """Return the bandwidth and latency of the slower network to emulate, if one was requested."""
    check_network(options.bandwidth, options.latency)
    bandwidth, latency = options.bandwidth or said.bandwidth, options.latency or said.latency
    if options.elastic and (bandwidth or latency):
        given = f"--bandwidth {bandwidth}" if bandwidth else f"--latency {latency}"
        raise click.UsageError(
            f"a network is slowed down for ranks that stay. Received: --elastic and {given}. Leave one of them out"
        )
    return bandwidth, latency


def _devices(options: LaunchOptions, said: Settings) -> tuple[str | None, Devices | None]:
    """Return the requested replication and devices per process, if any."""
    try:
        devices = Devices.parse(options.devices) if options.devices else said.devices
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    replication = options.replication or said.replication or ("in_graph" if devices else None)
    if devices and replication == "between_graph":
        raise click.UsageError(
            f"between_graph has one device for each process. Received: --devices {devices}. Use --replication in_graph"
        )
    if options.elastic and replication == "in_graph":
        raise click.UsageError(
            "--elastic is for workers that are processes of their own. Received: "
            f"{f'--devices {devices}' if devices else '--replication in_graph'}. Use --replication between_graph"
        )
    return replication, devices


def _workers(workers: int | None, servers: int, hosts: list[Host], cores: int, more: str) -> int:
    slots = sum(host.slots for host in hosts)
    if workers is None:
        workers = max(1, slots - servers) if hosts else cores
    if workers < 1:
        raise click.UsageError(f"the number of ranks must be 1 or more. Received: -n {workers}. Try -n 2")
    if workers > _MOST:
        raise click.UsageError(f"the number of ranks must be {_MOST} or less. Received: {workers}")
    check_servers(servers, workers)
    if hosts and workers + servers > slots:
        given = f"-n {workers}" + (f" --servers {servers}" if servers else "")
        raise click.UsageError(
            f"the hosts must have a slot for each rank. Received: {given} and {slots} slots on "
            f"{', '.join(map(str, hosts))}. {more}, or -n {max(1, slots - servers)}"
        )
    return workers


def _least(options: LaunchOptions, workers: int, has_hosts: bool) -> int | None:
    """Return the minimum number of workers of an elastic job; `None` if the job is not elastic."""
    least = options.min_workers
    if least is not None and not (options.elastic or (options.restarts and has_hosts)):
        raise click.UsageError(
            "--min-workers is for --elastic, or for --restarts on several hosts. Received: "
            f"--min-workers {least} without it"
        )
    if least is not None and not 1 <= least <= workers:
        raise click.UsageError(
            f"--min-workers must be from 1 to the number of workers. Received: --min-workers {least} and -n {workers}. "
            "Lower the one, or raise the other"
        )
    return (least or 1) if options.elastic else None


def _spares(options: LaunchOptions, workers: int, has_hosts: bool) -> int:
    """Return the number of spares, which wait to replace a worker."""
    wrong = "--servers" if options.servers else "--hosts" if has_hosts else None
    if options.spares is not None and not options.respawn:
        raise click.UsageError(f"--spares is for --respawn. Received: --spares {options.spares} without it")
    if options.respawn and not options.elastic:
        raise click.UsageError("--respawn needs --elastic. Received: no --elastic")
    if options.respawn and wrong:
        raise click.UsageError(f"--respawn is for workers of one host. Received: {wrong}. Leave one of them out")
    return (options.spares or workers) if options.respawn and workers > 1 else 0


def _check_auto(options: LaunchOptions, own: Settings) -> None:
    """Reject options that need a script written for EasyScale."""
    wrong = {
        "--elastic": options.elastic,
        "--servers": own.servers,
        "--resume": own.resume,
        "--devices" if options.devices else "--replication in_graph": own.replication == "in_graph",
    }
    if given := next((name for name, is_given in wrong.items() if is_given), None):
        raise click.UsageError(
            f"--auto is for workers that are processes and stay to the end. Received: --auto and {given}. Leave one of "
            "them out, or add EasyScale's three lines to the script"
        )


def _shown(text: str | None, processes: int) -> frozenset[int] | None:
    """Return the ranks whose output is shown; `None` for all."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) < processes for part in parts):
        raise click.UsageError(
            f"--ranks must be numbers of ranks, from 0 to {processes - 1}, with commas between them. Received: "
            f"--ranks {text}. Use --ranks 0"
        )
    return frozenset(map(int, parts))


def _recorded(options: LaunchOptions, own: Settings, said: Settings, ranks: int) -> Settings:
    """Return the ranks' settings, with those for profiling and tracing added."""
    steps = options.trace_steps
    profile, trace = int(options.profile) or said.profile, said.trace if options.trace is None else options.trace
    if steps is not None:
        parse("--trace-steps", steps, parse_steps)
        if trace is None:
            raise click.UsageError(f"--trace-steps is for --trace. Received: --trace-steps {steps} without it")
    if trace is not None:
        check_writable("--trace", trace)
    option = "--profile" if profile else "--trace" if trace is not None else None
    for is_so, rule, received in (
        (ranks == 1, "2 ranks or more", "one"),
        (options.elastic, "ranks that stay", "--elastic"),
        (own.servers > 0, "ranks that all train", f"--servers {own.servers}"),
        (own.replication == "in_graph", "ranks of one device each", "in-graph replication"),
    ):
        if option and is_so:
            raise click.UsageError(f"{option} is for {rule}. Received: {received}. Leave {option} out")
    return replace(
        own,
        profile=profile,
        trace=None if trace is None else os.path.abspath(trace),
        trace_steps=steps or said.trace_steps,
    )


def _elastic_batch(options: LaunchOptions, said: Settings) -> str:
    batch = options.elastic_batch
    if batch and not options.elastic:
        raise click.UsageError(f"--elastic-batch is for --elastic. Received: --elastic-batch {batch} without it")
    return batch or said.elastic_batch


def _stall_timeout(options: LaunchOptions, said: Settings) -> float:
    seconds = options.stall_timeout
    if seconds is not None and not math.isfinite(seconds):
        raise click.UsageError(
            f"--stall-timeout must be a number of seconds, or 0. Received: --stall-timeout {seconds}. Use 60"
        )
    return said.stall_timeout if seconds is None else seconds


def _resume(folder: str) -> str:
    if not os.path.isdir(folder):
        raise click.UsageError(f"--resume must be a folder with checkpoints. Received: '{folder}', which is none")
    return os.path.abspath(folder)
