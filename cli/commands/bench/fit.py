"""`easyscale bench fit`: times training on several ranks and with Keras alone, taking turns."""

import itertools
from typing import Any

import click

from easyscale import replication as replications
from easyscale.cli import options, reports
from easyscale.cli.bench import measuring
from easyscale.cli.bench.models import MODELS, OPTIMIZERS
from easyscale.cli.group import Command

__all__ = ["command"]

_IMAGE_SIZE = 64  # pixels, or the model's minimum if that is larger


@click.command(cls=Command)
@click.option("-n", "-np", "--np", "ranks", default="2", show_default=True, metavar="N,N,...", help="Numbers of ranks.")
@click.option("--model", default="mlp", show_default=True, help=f"One of {', '.join(MODELS)}.")
@click.option(
    "--batch-size",
    "batches",
    default="32",
    show_default=True,
    metavar="B,B,...",
    help="Samples of a rank in a step.",
)
@click.option("--exchanges", default="auto", show_default=True, metavar="NAME,NAME,...", help="What to compare.")
@click.option(
    "--replication", default="between_graph", show_default=True, metavar="NAME,NAME,...",
    help="between_graph: N processes. in_graph: one with N devices, beside stock Keras on as many.",
)  # fmt: skip
@click.option("--optimizer", default="adam", show_default=True, help="As in compile(); 'momentum' is SGD with it.")
@click.option("--image-size", type=int, metavar="N", help="N by N pixels. Defaults to 64, or the least that it takes.")
@click.option("--steps", type=int, default=10, show_default=True, metavar="N", help="In a turn, after two more.")
@click.option("--rounds", type=int, default=3, show_default=True, metavar="N", help="How many turns each has.")
@options.network
@options.files("Write the time of every step here.", "Draw the speed-up over ranks.")
def command(
    ranks: str,
    model: str,
    batches: str,
    exchanges: str,
    replication: str,
    optimizer: str,
    image_size: int | None,
    steps: int,
    rounds: int,
    bandwidth: str | None,
    latency: str | None,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Train on synthetic data with each exchange, and compare with Keras alone.

    Beside each other, in turns: all ranks with an exchange; all ranks without any, which is the bound, as if an
    exchange were free; and stock Keras in one process while the others rest. A rank has the same cores in all of them.
    """
    numbers = options.parse_numbers("-n", ranks)
    options.check_name("--model", model, [*MODELS])
    ways = options.parse_names("--replication", replication, replications.available())
    options.check_name("--optimizer", optimizer, OPTIMIZERS)
    options.check_least("--steps", steps, 1)
    options.check_least("--rounds", rounds, 1)
    wanted: dict[str, Any] = {
        "model": model,
        "batches": options.parse_numbers("--batch-size", batches),
        "exchanges": options.parse_exchanges(exchanges, also=["auto"]),
        "optimizer": optimizer,
        "image_size": _check_image_size(model, image_size),
        "steps": steps,
        "rounds": rounds,
        "bandwidth": bandwidth,
        "latency": latency,
    }
    options.check_network(bandwidth, latency)
    options.check_files(json_file, plot_file)
    if "in_graph" in ways:
        for name in wanted["exchanges"]:
            options.check_between_devices([name])
    _run(numbers, ways, wanted, json_file, plot_file)


def _run(numbers: list[int], ways: list[str], wanted: dict, json_file: str | None, plot_file: str | None) -> None:
    import rich.console

    from easyscale.cli.bench import fit_report as report

    rows, choices, machine = [], [], {}
    for ranks, replication in itertools.product(numbers, ways):

        def describe(message: dict, ranks: int = ranks, ranks_text: str = f"ranks, {replication}") -> str | None:
            return f"{ranks} {ranks_text}, {message['measuring']}" if "measuring" in message else None

        total = len(wanted["batches"]) * (len(wanted["exchanges"]) + 2)
        processes, devices = (1, ranks) if replication == "in_graph" else (ranks, 0)
        module, network = "easyscale.bench.fit", {name: wanted[name] for name in ("bandwidth", "latency")}
        messages = measuring.run_ranks(processes, module, wanted, total, describe, devices=devices, **network)
        rows += [message["row"] for message in messages if "row" in message]
        choices += [message["choice"] for message in messages if "choice" in message]
        machine = next(message["machine"] for message in messages if "machine" in message)
    rows = report.summarise(rows)
    rich.console.Console().print(report.table(rows, machine, wanted))
    if any(choice["timings"] for choice in choices):
        rich.console.Console().print(report.choices_table(choices))
    if json_file is not None:
        found = {"benchmark": "fit", "machine": machine, "wanted": wanted, "rows": rows, "choices": choices}
        reports.write(json_file, found)
    if plot_file is not None:
        report.plot(plot_file, rows, machine, wanted)


def _check_image_size(model: str, image_size: int | None) -> int:
    smallest = MODELS[model].smallest
    if image_size is None:
        return max(_IMAGE_SIZE, smallest or 0)
    if smallest is None:
        raise click.UsageError(f"--image-size is for models of images. Received: --image-size with --model {model}")
    options.check_image_size(model, smallest, image_size)
    return image_size
