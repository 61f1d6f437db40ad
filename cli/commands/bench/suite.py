"""`easyscale bench suite`: the classic tables of models, batch sizes and numbers of devices, in one command."""

import itertools
import os

import click

from easyscale import replication
from easyscale.cli import options
from easyscale.cli.bench.models import MODELS, OPTIMIZERS
from easyscale.cli.group import Command
from easyscale.errors import EasyScaleError
from easyscale.quantities import parse_bytes

__all__ = ["command"]

_CLASSICS = "alexnet,googlenet,inceptionv3,vgg16,resnet50,cifar10,mlp,deepspeech2,transformer"


@click.command(cls=Command)
@click.option("--out", required=True, metavar="DIR", help="Where tables, plots and finished cells go.")
@click.option("-n", "-np", "--np", "ranks", default="1,2", show_default=True, metavar="N,N,...", help="Ranks.")
@click.option("--models", default=_CLASSICS, show_default=True, metavar="NAME,NAME,...")
@click.option("--batch-sizes", "batches", default="16,32", show_default=True, metavar="B,B,...", help="Of a rank.")
@click.option(
    "--exchanges", default="auto,parameter_server:async", show_default=True, metavar="NAME,NAME,...",
    help="What to compare: by default in step, and not.",
)  # fmt: skip
@click.option(
    "--replication", "replications", default="between_graph,in_graph", show_default=True, metavar="NAME,NAME,...",
    help="As for `bench fit`. in_graph: with those of the exchanges that it has, from 2 devices on.",
)  # fmt: skip
@click.option("--optimizer", default="momentum", show_default=True, help="As for `bench fit`.")
@click.option("--image-size", type=int, metavar="N", help="Defaults to 64, or the least that a model takes.")
@click.option("--steps", type=int, default=5, show_default=True, metavar="N", help="In a turn.")
@click.option("--rounds", type=int, default=2, show_default=True, metavar="N", help="How many turns each has.")
@click.option("--timeout", type=float, default=900, show_default=True, metavar="S", help="Seconds for a cell.")
@click.option("--memory", metavar="SIZE", help="For all ranks of a cell. Defaults to 80 % of what is free.")
def command(
    out: str,
    ranks: str,
    models: str,
    batches: str,
    exchanges: str,
    replications: str,
    optimizer: str,
    image_size: int | None,
    steps: int,
    rounds: int,
    timeout: float,
    memory: str | None,
) -> None:
    """Train models with batch sizes on numbers of ranks; write tables, plots and JSON.

    Each cell of the tables is a process of its own: one for which there is no memory says OOM, and the others go on.
    Stopped or killed, the same command goes on with the cells that are missing. To repeat one, delete its file.
    """
    from easyscale.cli.suite import running
    from easyscale.cli.suite.cells import Cell

    names = options.parse_names("--models", models, [*MODELS])
    options.check_name("--optimizer", optimizer, OPTIMIZERS)
    for option, value in (("--steps", steps), ("--rounds", rounds), ("--image-size", image_size)):
        options.check_least(option, value, 1)
    for name in names:
        options.check_image_size(name, MODELS[name].smallest, image_size)
    if not 0 < timeout < 10**9:
        raise click.UsageError(f"--timeout must be a number of seconds above 0. Received: --timeout {timeout}")
    numbers = options.parse_numbers("-n", ranks)
    sizes_of_batches = options.parse_numbers("--batch-sizes", batches)
    chosen = {"between_graph": options.parse_exchanges(exchanges, also=["auto"])}
    ways = options.parse_names("--replication", replications, replication.available())
    if "in_graph" in ways:
        chosen["in_graph"] = options.check_between_devices(chosen["between_graph"])
    try:
        os.makedirs(out, exist_ok=True)
        writable = os.access(out, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise click.UsageError(f"--out must be a folder that may be written. Received: --out {out}")
    settings = {
        "exchanges": ",".join(chosen["between_graph"]),
        "optimizer": optimizer,
        "image_size": image_size,
        "steps": steps,
        "rounds": rounds,
    }
    same = ["--optimizer", optimizer, "--steps", str(steps), "--rounds", str(rounds)]
    cells = {
        Cell(name, batch, number, way): ["--exchanges", ",".join(chosen[way]), *same, *_of_images(name, image_size)]
        for name, batch, number, way in itertools.product(names, sizes_of_batches, numbers, ways)
        if way == "between_graph" or number > 1
    }
    if not cells:
        raise click.UsageError(f"-n must have 2 or more with --replication in_graph alone. Received: -n {ranks}")
    running.run(out, cells, settings, _memory(memory), timeout)


def _of_images(model: str, image_size: int | None) -> list[str]:
    return ["--image-size", str(image_size)] if image_size and MODELS[model].smallest else []


def _memory(text: str | None) -> int:
    if text is not None:
        return options.parse("--memory", text, parse_bytes)
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            free = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        raise EasyScaleError("how much memory is free is not known here. Say it: --memory 8GB") from None
    return int(0.8 * 1024 * free)
