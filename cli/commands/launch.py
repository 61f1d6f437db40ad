"""`easyscale launch`: its options. `planning` validates them, and the resulting `LaunchPlan` starts the job."""

import sys
from typing import Any

import click
from click.core import ParameterSource

from easyscale.cli import config
from easyscale.cli import options as checked
from easyscale.cli.group import Command
from easyscale.cli.launch.planning import LaunchOptions, plan

__all__ = ["command"]

_EASILY_MISPLACED = {"-n", "-np", "--np", "--exchange", "--servers", "--hosts", "--elastic", "--restarts", "--auto"}


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.option(
    "-n", "-np", "--np", "ranks", type=checked.Workers(), metavar="N",
    help="How many workers to start: processes, or in-graph without --devices the devices of one. auto, the default: "
    "one for each slot of the hosts, or without hosts for each core. gpu: one for each GPU of this machine.",
)  # fmt: skip
@click.option("--exchange", metavar="NAME", help="How gradients are exchanged. The script's own choice wins.")
@click.option(
    "--replication", metavar="NAME",
    help="between_graph: a process for each worker. in_graph: one process with N devices, or N with --devices each.",
)  # fmt: skip
@click.option(
    "--compression", metavar="NAME", help="Compression of gradients: int8, bf16, ..., or auto. Default: none."
)
@click.option(
    "--devices", metavar="D",
    help="Let each process drive D devices, in-graph: GPUs if there are so many, else logical CPU devices. gpu:D and "
    "cpu:D take one kind only.",
)  # fmt: skip
@click.option(
    "--servers", type=int, default=0, metavar="K",
    help="Start K ranks more, which own the weights and train on no data. Default: 0, all workers serve.",
)  # fmt: skip
@click.option(
    "--elastic", is_flag=True,
    help="Continue when a worker fails; with servers, only if they wait for no worker.",
)  # fmt: skip
@click.option(
    "--min-workers", type=int, metavar="M",
    help="With --elastic: end below M workers. Default: 1. With --restarts on several hosts: start again on those "
    "that answer, if they have slots for M workers.",
)  # fmt: skip
@click.option(
    "--elastic-batch", type=click.Choice(["global", "local"]),
    help="With --elastic: which batch size stays when a worker fails: global, divided again among the others "
    "(the default), or local, that of each, without the data of the one that failed.",
)  # fmt: skip
@click.option(
    "--respawn", is_flag=True,
    help="With --elastic: replace workers that fail; the new ones join at the next epoch. On one host.",
)  # fmt: skip
@click.option(
    "--spares", type=click.IntRange(1), metavar="N",
    help="With --respawn: how many processes wait to replace workers. Default: as many as workers.",
)  # fmt: skip
@checked.hosts
@click.option(
    "--stall-timeout", type=click.FloatRange(0), metavar="S",
    help="Report ranks that have waited for others for S seconds, and end the job after twice that. 0: never. "
    "Default: 60.",
)  # fmt: skip
@click.option(
    "--restarts", type=click.IntRange(0), default=0, metavar="N",
    help="Start the job again if it fails, up to N times, after a pause of 1 s, then 2 s, 4 s, up to 30 s. Default: 0.",
)  # fmt: skip
@click.option("--resume", metavar="DIR", help="Continue from the last checkpoint in DIR. It must have one.")
@click.option(
    "--onednn", type=click.Choice(["auto", "on", "off"]),
    help="Whether TensorFlow uses oneDNN's kernels. Default: auto, where they are faster on this processor "
    "and TF_ENABLE_ONEDNN_OPTS is not set.",
)  # fmt: skip
@click.option(
    "--auto", is_flag=True,
    help="Train an unchanged Keras script on all workers: fit, evaluate, predict and save do what EasyScale's three "
    "lines would.",
)  # fmt: skip
@checked.network
@click.option(
    "--profile", is_flag=True,
    help="Print at the end of a fit() where the time of its steps went, on each rank, and what would help.",
)  # fmt: skip
@click.option("--trace", metavar="FILE", help="Write a timeline of all ranks to a JSON file, for ui.perfetto.dev.")
@click.option("--trace-steps", metavar="A:B", help="The steps in the timeline: from A, before B. Default: 0:100.")
@click.option("--log-dir", metavar="DIR", help="Also write the output of ranks to DIR: rank_0.log, ..., and job.log.")
@click.option("--ranks", "shown", metavar="0,3", help="Show the output of these ranks only. Default: of all.")
@config.option
@click.option("--dry-run", is_flag=True, help="Print the command that would run, and exit.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in `python -m`.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, dry_run: bool, print_config: bool, **options: Any) -> None:
    """Run SCRIPT on several ranks.

    Everything after SCRIPT belongs to the script. The exit code is the script's. One rank runs without MPI.
    """
    said = [context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ("script", "arguments")]
    if said == [True, False]:  # arguments in the config file belong to its own script
        options["arguments"] = context.params["arguments"] = ()
    planned = plan(LaunchOptions(**options))
    if text := _misplaced(context):
        click.echo(
            f"easyscale: `{text}` after the script's name goes to the script. If `launch` should have it, write: "
            f"easyscale launch {text} {options['script']}",
            err=True,
        )
    if print_config:
        click.echo(config.written(context))
    elif dry_run:
        click.echo(planned)
    else:
        sys.exit(planned.run())


def _misplaced(context: click.Context) -> str:
    """Return an option of `launch`, not given to it, among the script's arguments, with its value; `""` if none is."""
    arguments = context.params["arguments"]
    for option in context.command.params:
        is_given = context.get_parameter_source(str(option.name)) is not ParameterSource.DEFAULT
        for name in () if is_given else _EASILY_MISPLACED.intersection(option.opts).intersection(arguments):
            place = arguments.index(name)
            return " ".join(arguments[place : place + (1 if getattr(option, "is_flag", False) else 2)])
    return ""
