"""Predicts the bandwidth below which gradient codecs pay, from the bytes that they send and the time to pack them.

    wire    = alpha * steps + beta * share * bytes + gamma * memory     from the exchange's `critical_path`
    packing = pack * bytes / 2 + unpack * bytes                         each sum is packed once, by its owner
    step    = slowest + packing + wire - hidden(wire)

A codec of low rank, or of random elements, packs whole vectors instead, once. Packing keeps a core busy, so the
backward pass hides none of it; one rank per node packs everything.

Reference: Agarwal et al., "On the utility of gradient compression in distributed training systems", 2022, section 4.
"""

from typing import NamedTuple

from easyscale.cli.plan.model import Machine, exchange_seconds, hidden_of, slowest
from easyscale.cli.plan.packing import FormCost
from easyscale.exchange.exchange import Exchange, Path

__all__ = ["FormPlan", "plan_forms"]

_LEAST, _MOST = 1e3, 1e13  # the range of network bandwidths, in bytes per second


class FormPlan(NamedTuple):
    """A planned step with a codec.

    Attributes:
        ranks: Int.
        exchange: String.
        form: String.
        bytes: Float. Bytes through the link of the busiest rank or node.
        packing: Float. Seconds of packing and unpacking.
        seconds: Float. Seconds of a step.
        faster: Float. Speed-up over a step without a codec.
        pays_below: Float. Link bandwidth, in bytes per second, below which the codec shortens a step; 0 if never.
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
    """Return the step with each codec, for each number of ranks, on the exchange that is fastest without a codec.

    There is no plan where nothing is sent, as on one node.

    Args:
        costs: Dict from names of codecs to `FormCost`.
        exchanges: Dict from names to exchanges. Those that do not support codecs are left out.
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
    """An exchange's path for a number of ranks, and a codec on it."""

    path: Path
    ranks: int
    nbytes: int
    cost: FormCost

    def without(self, machine: Machine) -> float:
        """Return the seconds of a step without the codec."""
        return self._step(self.path, machine)

    def seconds(self, machine: Machine) -> float:
        """Return the seconds of a step with the codec."""
        path = self.path
        path = Path(self.cost.sums * path.steps, self.cost.share * path.bytes, path.memory)
        return self._step(path, machine) + self.cost.packing(self.path.bytes, self.nbytes)

    def _step(self, path: Path, machine: Machine) -> float:
        taken = exchange_seconds(path, machine)
        waiting = machine.compute * machine.spread * slowest(self.ranks)
        return machine.compute + waiting + taken - hidden_of(taken, machine)

    def pays_below(self, machine: Machine) -> float:
        """Return the bandwidth at which both are equally fast: savings shrink as it grows."""

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
