"""`easyscale doctor`: checks that training works here, and suggests a remedy where it does not."""

import sys

import click

from easyscale.cli import options, reports
from easyscale.cli.group import Command

__all__ = ["command"]

_STYLES = {"ok": "green", "warning": "yellow", "fails": "bold red"}


@click.command(cls=Command, short_help="Look whether training works here, and what to do if not.")
@options.hosts
@click.option("--report", is_flag=True, help="Write a text in Markdown for a bug report; it has no names of users.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=60.0, show_default=True, metavar="S",
    help="How long each host may take to answer, and then all ranks to train, in seconds.",
)  # fmt: skip
def command(hosts: str | None, hostfile: str | None, report: bool, timeout: float) -> None:
    """Look whether training works here, and say what to do where it does not.

    Each finding is a line: `ok`, `warning` or `fails`, and the cure. At the end ranks train a model of a few weights:
    two on this host or, with --hosts, one on each, which also measure the network between each two. In a job of a
    scheduler's, such as Slurm, its hosts are taken. The exit code is 1 if training would fail.
    """
    import rich.console
    import rich.text

    from easyscale.cli.doctor import report as reporting
    from easyscale.cli.doctor.examination import Examination
    from easyscale.cli.doctor.finding import Finding
    from easyscale.cli.launch import allocations

    named = options.parse_hosts(hosts, hostfile)
    if not named and (allocation := allocations.find()) is not None:
        named = allocation.named(allocation.hosts())
    console, errors = rich.console.Console(highlight=False), rich.console.Console(stderr=True)

    def show(finding: Finding) -> None:
        line = rich.text.Text(str(finding))
        line.stylize(_STYLES[finding.grade], 0, len(finding.grade))
        console.print(line, soft_wrap=True)

    with reports.progress(errors, is_counted=False, is_shown=errors.is_terminal) as shown:
        task = shown.add_task("")
        seen = Examination(
            named,
            timeout,
            begin=lambda what: shown.update(task, description=what),
            show=(lambda finding: None) if report else show,
        )
        seen.run()
    if report:
        click.echo(reporting.markdown(seen.findings, seen.versions))
    else:
        console.print("training would fail" if seen.fails else "training works", style="bold")
    sys.exit(seen.fails)
