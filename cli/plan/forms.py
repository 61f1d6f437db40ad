"""Under which bandwidth forms of gradients pay, from what they send and what packing takes.

    wire    = alpha * steps + beta * share * bytes + gamma * memory     of the exchange's `critical_path`
    packing = pack * bytes / 2 + unpack * bytes                         what goes back is packed once, by its owner
    step    = slowest + packing + wire - hidden(wire)

A form of low rank, or of random numbers, packs whole vectors instead, once. Packing takes a core's time, so none of it
is hidden behind the backward pass; one rank of a node packs all.

Reference: Agarwal et al., "On the utility of gradient compression in distributed training systems", 2022, section 4.
"""

from typing import NamedTuple

from easyscale.cli.plan.model import Machine, exchange_seconds, hidden_of, slowest
from easyscale.cli.plan.packing import FormCost
from easyscale.exchange.exchange import Exchange, Path

__all__ = ["FormPlan", "plan_forms"]

_LEAST, _MOST = 1e3, 1e13  # bytes per second between which networks are


class FormPlan(NamedTuple):
    """What a form makes of a planned step.

    Attributes:
        ranks: Int.
        exchange: String.
        form: String.
        bytes: Float. What goes through the link of the busiest rank, or node.
        packing: Float. Seconds of packing and unpacking.
        seconds: Float. Of a step.
        faster: Float. How many times as fast as without a form.
        pays_below: Float. Bytes per second of a link below which a step is shorter with the form; 0 if it never is.
    """

    ranks: int
    exchange: str
    form: str
    bytes: float
    packing: float
    seconds: float
    faster: float
    pays_below: float


def plan_forms(
    costs: dict[str, FormCost], exchanges: dict[str, Exchange], ranks: list[int], nbytes: int, machine: Machine
) -> list[FormPlan]:
    """Return what each form makes of a step of so many ranks, along the exchange that is the fastest without one.

    Where nothing is sent, as on one node, there is no plan.

    Args:
        costs: Dict from names of forms to `FormCost`.
        exchanges: Dict from names to exchanges. Those that gradients cannot travel along in a form are left out.
        ranks: Numbers of workers.
        nbytes: Int. Size of the gradients, in float32.
        machine: The `Machine`.
    """
    planned = []
    for size in [size for size in ranks if size > 1]:
        paths = {}
        for name, way in exchanges.items():
            path = way.critical_path(size, nbytes, min(machine.ranks_per_node, size), machine.servers)
            if path is not None and path.bytes and way.is_synchronous and way.travels_by == "messages":
                paths[name] = path
        if not paths:
            continue
        name = min(sorted(paths, reverse=True), key=lambda name: round(exchange_seconds(paths[name], machine), 9))
        for form, cost in costs.items():
            of_form = _Way(paths[name], size, nbytes, cost)
            seconds, faster = of_form.seconds(machine), of_form.without(machine) / of_form.seconds(machine)
            sent = cost.share * paths[name].bytes
            packing = cost.packing(paths[name].bytes, nbytes)
            planned.append(FormPlan(size, name, form, sent, packing, seconds, faster, of_form.pays_below(machine)))
    return planned


class _Way(NamedTuple):
    """An exchange's path for some ranks, and a form on it."""

    path: Path
    ranks: int
    nbytes: int
    cost: FormCost

    def without(self, machine: Machine) -> float:
        """Return the seconds of a step without the form."""
        return self._step(self.path, machine)

    def seconds(self, machine: Machine) -> float:
        """Return the seconds of a step in the form."""
        path = self.path
        path = Path(self.cost.sums * path.steps, self.cost.share * path.bytes, path.memory)
        return self._step(path, machine) + self.cost.packing(self.path.bytes, self.nbytes)

    def _step(self, path: Path, machine: Machine) -> float:
        taken = exchange_seconds(path, machine)
        waiting = machine.compute * machine.spread * slowest(self.ranks)
        return machine.compute + waiting + taken - hidden_of(taken, machine)

    def pays_below(self, machine: Machine) -> float:
        """Return the bandwidth at which both take as long: what is saved shrinks as it grows."""

        def saved(bandwidth: float) -> float:
            other = machine._replace(bandwidth=bandwidth)
            return self.without(other) - self.seconds(other)

        low, high = _LEAST, _MOST
        if saved(low) <= 0:
            return 0.0
        while high > 1.0001 * low:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if saved(middle) > 0 else (low, middle)
        return low
