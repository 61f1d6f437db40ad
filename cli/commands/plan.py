"""`easyscale plan`: predicts how fast a model would train on many ranks, without having them."""

from collections.abc import Callable
from typing import Any

import click

from easyscale.cli import options
from easyscale.cli.bench.models import MODELS
from easyscale.cli.group import Command
from easyscale.quantities import parse_bandwidth, parse_bytes, parse_count, parse_flops, parse_seconds

__all__ = ["command"]

_PARSERS: dict[str, Callable[[str], float]] = {
    "bandwidth": parse_bandwidth,
    "latency": parse_seconds,
    "memory": parse_bandwidth,
    "flops": parse_flops,
    "compute": parse_seconds,
    "weights": parse_count,
    "activations": parse_bytes,
    "within": parse_bytes,
}

_LEAST = (
    *(("batch_size", 1), ("ranks_per_node", 1), ("servers", 0), ("spread", 0), ("stages", 1), ("microbatches", 1)),
    *(("group", 1), ("pairs", 1)),
)


@click.command(cls=Command, short_help="Work out how fast many ranks would train.")
@click.option("--model", default="resnet50", show_default=True, help=f"One of {', '.join(MODELS)}.")
@click.option("--weights", metavar="N", help="Of a model of your own, as 38M, with --compute; instead of --model.")
@click.option("--ranks", default="1,8,64,1024", show_default=True, metavar="N,N,...", help="Numbers of workers.")
@click.option("--bandwidth", default="10Gbit", show_default=True, help="Of each node's link.")
@click.option("--latency", default="20us", show_default=True, help="Of a message between nodes.")
@click.option("--memory", default="20GB/s", show_default=True, help="What a rank reads and writes in memory.")
@click.option("--batch-size", type=int, default=32, show_default=True, metavar="B", help="Samples of a rank in a step.")
@click.option("--compute", help="Time of a step of one rank alone. Defaults to what --flops makes of the model.")
@click.option("--flops", default="5TFLOPS", show_default=True, help="What a rank computes with, really; a GPU of 2017.")
@click.option(
    "--overlap",
    type=float,
    default=0.5,
    show_default=True,
    help="Part of an exchange beside the backward pass: 0 to 1.",
)
@click.option("--spread", type=float, default=0.02, show_default=True, help="Of compute times: deviation over mean.")
@click.option(
    "--ranks-per-node",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="So many ranks share a node's network.",
)
@click.option(
    "--stages", type=int, default=1, show_default=True, metavar="S",
    help="Cut the model into pipelines of S ranks, which are one worker each.",
)  # fmt: skip
@click.option(
    "--microbatches", type=int, default=8, show_default=True, metavar="M",
    help="With --stages: parts of a worker's batch.",
)  # fmt: skip
@click.option(
    "--activations", default="4KB", show_default=True, metavar="BYTES",
    help="With --stages: what crosses a cut for one sample, as 64KB.",
)  # fmt: skip
@click.option(
    "--group", type=int, default=1, show_default=True, metavar="G",
    help="Divide layers over G ranks, which are one worker, or with --stages have one stage.",
)  # fmt: skip
@click.option(
    "--split", type=float, default=1.0, show_default=True, metavar="F",
    help="With --group: part of the weights, and of the work, in layers that are split; 0 to 1.",
)  # fmt: skip
@click.option(
    "--within", default="4KB", show_default=True, metavar="BYTES",
    help="With --group: what comes into pairs of split layers and leaves them, for one sample.",
)  # fmt: skip
@click.option(
    "--pairs", type=int, default=1, show_default=True, metavar="L",
    help="With --group: how many pairs, columns followed by rows, or attentions by heads.",
)  # fmt: skip
@click.option("--servers", type=int, default=0, show_default=True, metavar="K", help="Ranks that only serve.")
@click.option(
    "--compression", metavar="NAME,NAME,...",
    help="Say below which bandwidth gradients in these forms pay: int8,one_bit. They are packed here to time it.",
)  # fmt: skip
@click.option("--exchanges", metavar="NAME,NAME,...", help="Defaults to all whose cost is known.")
@click.option(
    "--measured", multiple=True, metavar="FILE",
    help="JSON of `bench exchange`: plan for that machine. Of `bench fit`: its time of a step. Several may be given.",
)  # fmt: skip
@options.files("Write the plan here.", "Draw speed-up and efficiency over ranks.")
def command(
    ranks: str,
    exchanges: str | None,
    compression: str | None,
    measured: tuple[str, ...],
    json_file: str | None,
    plot_file: str | None,
    **given: Any,
) -> None:
    """Work out time per step, speed-up and efficiency on many ranks, from latency, bandwidth, memory and compute."""
    from easyscale.cli.plan import planning

    options.check_name("--model", given["model"], [*MODELS])
    parsed = {name: given[name] and options.parse(f"--{name}", given[name], parse) for name, parse in _PARSERS.items()}
    wanted = {**given, **parsed, "ranks": options.parse_numbers("--ranks", ranks)}
    if wanted["weights"] is not None and wanted["compute"] is None:
        raise click.UsageError(f"--weights needs --compute, the time of a step. Received: --weights {given['weights']}")
    if wanted["compute"] == 0:
        raise click.UsageError(f"--compute must be a time above 0. Received: --compute {given['compute']}")
    for option, least in _LEAST:
        options.check_least("--" + option.replace("_", "-"), wanted[option], least)
    if wanted["servers"] > max(wanted["ranks"]):
        raise click.UsageError(
            f"--servers must be no more than the workers. Received: --servers {wanted['servers']} and --ranks {ranks}"
        )
    if not 0 <= wanted["overlap"] <= 1:
        raise click.UsageError(f"--overlap must be from 0 to 1. Received: --overlap {wanted['overlap']}")
    bad = [size for size in wanted["ranks"] if size > wanted["ranks_per_node"] and size % wanted["ranks_per_node"]]
    if bad:
        raise click.UsageError(
            f"--ranks must fill nodes of --ranks-per-node {wanted['ranks_per_node']}. Received: --ranks {ranks}"
        )
    _check_pipelines(wanted, {"--servers": wanted["servers"], "--measured": measured, "--compression": compression})
    names = options.parse_exchanges(exchanges)
    forms = [] if compression is None else _parse_forms(compression)
    options.check_files(json_file, plot_file)
    planning.run(wanted, names, exchanges is not None, forms, measured, json_file, plot_file)


def _check_pipelines(wanted: dict, others: dict[str, Any]) -> None:
    stages, group, given = wanted["stages"], wanted["group"], ",".join(map(str, wanted["ranks"]))
    if not 0 <= wanted["split"] <= 1:
        raise click.UsageError(f"--split must be from 0 to 1. Received: --split {wanted['split']}")
    if stages == group == 1:
        return
    by = {"--stages": stages, "--group": group}
    named = [name for name, count in by.items() if count > 1]
    if bad := [size for size in wanted["ranks"] if size > 1 and size % (stages * group)]:
        raise click.UsageError(
            f"--ranks must be multiples of {' x '.join(named)}, or 1. Received: --ranks {given} and "
            f"{' and '.join(f'{name} {by[name]}' for name in named)}; {bad[0]} is none"
        )
    if stages > 1 and wanted["microbatches"] > wanted["batch_size"]:
        raise click.UsageError(
            f"--microbatches must be no more than the samples of a batch. Received: --microbatches "
            f"{wanted['microbatches']} and --batch-size {wanted['batch_size']}"
        )
    for option, is_given in others.items():
        if is_given:
            by_name = " and ".join(named)
            raise click.UsageError(f"{by_name} must be without {option}. Received: both. Leave one of them out")


def _parse_forms(text: str) -> list[str]:
    from easyscale import compression

    return options.parse_names("--compression", text, list(compression.available()))
