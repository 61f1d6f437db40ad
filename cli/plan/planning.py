"""Makes a plan: reads measurements, computes steps, and shows them."""

from collections.abc import Sequence

from easyscale import exchange as registry
from easyscale.cli import reports
from easyscale.cli.bench.models import MODELS
from easyscale.cli.plan import measured as reading
from easyscale.cli.plan import report
from easyscale.cli.plan.forms import plan_forms
from easyscale.cli.plan.model import Groups, Machine, Pipelines, Step, crossover_bytes, crossovers, plan
from easyscale.cli.plan.packing import costs_of
from easyscale.errors import EasyScaleError

__all__ = ["run"]

BYTES = 4  # of a weight's gradient
_PASSES = 3  # a backward pass computes twice as much as a forward pass
_SCANNED = [2**power for power in range(1, 13)]  # numbers of ranks, for crossovers


def run(
    wanted: dict,
    names: list[str],
    are_chosen: bool,
    forms: list[str],
    files: Sequence[str],
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Make a plan, and show it.

    Args:
        wanted: Dict. The parsed options of the command.
        names: Names of exchanges.
        are_chosen: Bool. Whether the user chose these, so that none may be left out.
        forms: Names of codecs to plan with.
        files: Files with measurements.
        json_file: Where to write the plan.
        plot_file: Where to draw it.
    """
    import rich.console

    model, batch = MODELS[wanted["model"]], wanted["batch_size"]
    weights = wanted["weights"] or model.weights
    exchanges = {name: registry.get(name) for name in names}
    compute = wanted["compute"] or 2 * _PASSES * model.multiply_adds * 1e6 * batch / wanted["flops"]
    rows, found = [], [reading.read(file) for file in files]
    for measurement in found:
        if measurement["benchmark"] == "fit":
            compute = wanted["compute"] or reading.step_seconds(measurement, wanted["model"], batch)
        else:
            rows += [
                {**row, **_workers_and_cores(measurement, wanted)}
                for row in measurement["rows"]
                if row["exchange"] in exchanges
            ]
    own = ("latency", "bandwidth", "memory", "overlap", "spread", "ranks_per_node", "servers")
    machine = Machine(compute, **{name: wanted[name] for name in own})
    node = reading.Node(exchanges, rows)
    if any(measurement["benchmark"] == "exchange" for measurement in found):
        _check_measured(node, rows, wanted)
    pipelines = None
    if wanted["stages"] > 1:
        pipelines = Pipelines(wanted["stages"], wanted["microbatches"], wanted["activations"] * batch)
    groups = None
    if wanted["group"] > 1:
        groups = Groups(wanted["group"], wanted["split"], wanted["within"] * batch, wanted["pairs"])
    of_worker = wanted["stages"] * wanted["group"]
    steps = plan(exchanges, wanted["ranks"], weights * BYTES, machine, node.seconds, pipelines, groups)
    _check_chosen(names if are_chosen else [], steps, wanted)
    scanned = [
        size
        for size in _SCANNED
        if (size <= wanted["ranks_per_node"] or size % wanted["ranks_per_node"] == 0)
        and (size > node.most or node.knows(size))
        and (size > of_worker and size % of_worker == 0)
    ]
    changes = crossovers(plan(exchanges, scanned, weights * BYTES, machine, node.seconds, pipelines, groups))
    by_size = {}
    if {"ring", "tree"} <= set(exchanges) and of_worker == 1:
        ring, tree = exchanges["ring"], exchanges["tree"]
        beyond = [size for size in wanted["ranks"] if size > max(2, node.most)]
        by_size = {size: crossover_bytes(ring, tree, size, machine) for size in beyond}
    of_forms = plan_forms(costs_of(forms), exchanges, wanted["ranks"], weights * BYTES, machine)
    checked = reading.left_out(rows)
    title = _title(wanted, weights, compute, found, node.most, pipelines, groups)
    console = rich.console.Console()
    console.print(report.table(steps, title))
    for line in report.lines_of_crossovers(changes, by_size):
        console.print(line, highlight=False)
    if of_forms:
        console.print(report.forms_table(of_forms))
    elif forms:
        console.print("no form can be used along these exchanges, between so many ranks")
    if checked:
        console.print(report.check_table(checked))
    if json_file is not None:
        kept = [{key: row[key] for key in ("exchange", "ranks", "bytes", "median", "predicted")} for row in checked]
        inputs = {**wanted, "compute": compute, "bytes": weights * BYTES, "measured": list(files)}
        reports.write(json_file, report.record(inputs, steps, changes, by_size, kept, of_forms))
    if plot_file is not None:
        report.plot(plot_file, steps, title)


def _workers_and_cores(found: dict, wanted: dict) -> dict:
    """Return the numbers of workers and cores of a measurement."""
    machine = found["machine"]
    servers = machine["servers"]
    if servers != wanted["servers"]:
        raise EasyScaleError(
            f"--measured must have as many servers as the plan. Received: {servers} servers, and --servers "
            f"{wanted['servers']}"
        )
    return {"ranks": machine["ranks"] - servers, "cores": machine["cores"]}


def _check_measured(node: reading.Node, rows: list[dict], wanted: dict) -> None:
    """Reject files of several machines, and ranks of a kind (one core each, or shared cores) that was not measured."""
    if not rows:
        raise EasyScaleError("--measured must have times of the exchanges of the plan. Received: those of others only")
    cores = sorted({row["cores"] for row in rows})
    if len(cores) > 1:
        raise EasyScaleError(f"all files of --measured must be of one machine. Received: machines of {cores} cores")
    for size in wanted["ranks"]:
        if 1 < size <= node.most and not node.knows(size):
            have = ", ".join(map(str, sorted({row["ranks"] for row in rows})))
            raise EasyScaleError(
                f"--measured must have ranks that have a core each, or share cores, as those of the plan. Received: "
                f"{have} ranks on {cores[0]} cores, and --ranks {size}. Add what easyscale bench exchange -n {size} "
                "--json FILE writes"
            )


def _check_chosen(names: list[str], steps: list[Step], wanted: dict) -> None:
    """Reject a chosen exchange that cannot be planned for any of the ranks."""
    for name in names:
        if any(size > wanted["stages"] * wanted["group"] for size in wanted["ranks"]) and not any(
            step.exchange == name and step.ranks > 1 for step in steps
        ):
            raise EasyScaleError(
                f"--exchanges must be some that can be planned for these ranks. Received: {name} with --ranks "
                f"{','.join(map(str, wanted['ranks']))} and --ranks-per-node {wanted['ranks_per_node']}. Say how many "
                "ranks a node has, or give --measured"
            )


def _title(
    wanted: dict,
    weights: int,
    compute: float,
    found: list[dict],
    most: int,
    pipelines: Pipelines | None,
    groups: Groups | None,
) -> str:
    name = "a model" if wanted["weights"] else wanted["model"]
    owner = "worker" if pipelines or groups else "rank"
    count = f"{weights / 1e6:,.1f} M" if weights >= 1e5 else f"{weights:,}"
    size = f"{count} weights, batch {wanted['batch_size']} of a {owner}"
    parts = [f"{name}, {size}, {1e3 * compute:,.1f} ms of compute"]
    machines = [measurement["machine"] for measurement in found if measurement["benchmark"] == "exchange"]
    if machines:
        parts.append(f"up to {most} ranks as measured on {machines[0]['cores']} cores ({machines[0]['cpu']})")
    if not machines or max(wanted["ranks"]) > most:
        speed = f"{wanted['bandwidth'] * 8 / 1e9:g} Gbit/s, {1e6 * wanted['latency']:g} µs"
        parts.append(f"{'beyond: ' * bool(machines)}{speed}, {wanted['ranks_per_node']} rank(s) on a node")
    parts.append(f"overlap {0 if pipelines else wanted['overlap']:g}, spread {wanted['spread']:g}")
    if pipelines is not None:
        crossing = f"{wanted['activations'] / 1e3:,.1f} KB of a sample cross each cut"
        parts.append(
            f"pipelines of {pipelines.stages} stages, {pipelines.microbatches} micro-batches: a stage waits for "
            f"{pipelines.bubble:.0%} of a pass; {crossing}"
        )
    if groups is not None:
        parts.append(
            f"groups of {groups.ranks} ranks {'have a stage' if pipelines else 'are a worker'}, and divide "
            f"{groups.share:.0%} of the weights: {wanted['within'] / 1e3:,.1f} KB of a sample come into split layers "
            "and leave them"
        )
    if pipelines is not None or groups is not None:
        own = weights * (groups.part if groups else 1.0) / wanted["stages"]
        parts.append(f"a rank has {_megabytes(own)} of {_megabytes(weights)} of weights")
    return "\n".join(parts)


def _megabytes(weights: float) -> str:
    return f"{weights * BYTES / 1e6:,.1f} MB"
