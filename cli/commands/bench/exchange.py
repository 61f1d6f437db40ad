"""`easyscale bench exchange`: times the allreduce of every exchange in one run, taking turns."""

import click

from easyscale.cli import options, reports
from easyscale.cli.bench import measuring
from easyscale.cli.group import Command
from easyscale.errors import EasyScaleError
from easyscale.quantities import bytes_text, parse_bytes

__all__ = ["command"]

_DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64"]


@click.command(cls=Command)
@click.option(
    "-n", "-np", "--np", "ranks", type=int, default=2, show_default=True, metavar="N", help="How many workers."
)
@click.option(
    "--servers", type=int, default=0, show_default=True, metavar="K",
    help="Start K ranks more, which own the vectors: only exchanges that can have servers are measured.",
)  # fmt: skip
@click.option(
    "--sizes", default="4KB,64KB,1MB,16MB,100MB", show_default=True, metavar="S,S,...",
    help="Sizes of the vector. KB is 1000 bytes, KiB 1024.",
)  # fmt: skip
@click.option(
    "--exchanges", metavar="NAME,NAME,...",
    help="Defaults to all that there are; over a slower network to those that are for several nodes.",
)  # fmt: skip
@click.option("--dtype", default="float32", show_default=True, help="Of the elements.")
@click.option("--repeats", type=int, metavar="N", help="Repetitions. Defaults to as many as fit 1 s, 7 to 1000.")
@click.option("--warmup", type=int, default=3, show_default=True, metavar="N", help="Repetitions that do not count.")
@options.network
@options.files("Write all times here.", "Draw time and bandwidth over size.")
def command(
    ranks: int,
    servers: int,
    sizes: str,
    exchanges: str | None,
    dtype: str,
    repeats: int | None,
    warmup: int,
    bandwidth: str | None,
    latency: str | None,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Sum vectors over ranks with each exchange, and compare.

    A repetition counts as long as its slowest rank took. The exchanges take turns, so that what else the machine does
    meets all alike. Every sum is checked once.
    """
    if ranks < 2:
        raise click.UsageError(f"an exchange needs 2 ranks or more. Received: -n {ranks}")
    options.check_servers(servers, ranks)
    options.check_least("--repeats", repeats, 1)
    options.check_least("--warmup", warmup, 0)
    is_spread = bandwidth is not None or latency is not None  # ranks then count as being on different nodes
    wanted = {
        "sizes": sorted({options.parse("--sizes", size, parse_bytes) for size in sizes.split(",")}),
        "exchanges": None if is_spread and exchanges is None else options.parse_exchanges(exchanges, servers=servers),
        "dtype": options.check_name("--dtype", dtype, _DTYPES),
        "repeats": repeats,
        "warmup": warmup,
        "bandwidth": bandwidth,
        "latency": latency,
    }
    options.check_network(bandwidth, latency)
    options.check_files(json_file, plot_file)
    _run(ranks, servers, wanted, json_file, plot_file)


def _run(ranks: int, servers: int, wanted: dict, json_file: str | None, plot_file: str | None) -> None:
    import rich.console

    from easyscale.cli.bench import exchange_report as report

    machine, rows = _measure(ranks, servers, wanted)
    rows = report.summarise(rows, ranks)
    rich.console.Console().print(report.table(rows, machine))
    if json_file is not None:
        reports.write(json_file, {"benchmark": "exchange", "machine": machine, "rows": rows})
    if plot_file is not None:
        report.plot(plot_file, rows, machine)


def _measure(ranks: int, servers: int, wanted: dict) -> tuple[dict, list[dict]]:
    """Start the ranks and return what they measured."""

    def describe(message: dict) -> str | None:
        return f"{bytes_text(message['bytes'])} {message['measuring']}" if "measuring" in message else None

    total = len(wanted["sizes"]) * len(wanted["exchanges"] or options.parse_exchanges(None))
    network = {name: wanted[name] for name in ("bandwidth", "latency")}
    module = "easyscale.bench.exchange"
    messages = measuring.run_ranks(ranks + servers, module, wanted, total, describe, servers, **network)
    found = {name: value for message in messages for name, value in message.items()}
    if "wrong" in found:
        wrong = found["wrong"]
        raise EasyScaleError(
            f"an allreduce must give the sum over ranks. Received: another from '{wrong['exchange']}' for "
            f"{bytes_text(wrong['bytes'])} on the ranks {wrong['ranks']}. The exchange is not right"
        )
    return found["machine"], [message["row"] for message in messages if "row" in message]
