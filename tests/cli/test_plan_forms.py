"""`easyscale plan --compression`: forms by hand, what is packed here, and bad input."""

import json

import numpy as np
import pytest

from easyscale import compression, exchange
from easyscale.cli.plan.forms import plan_forms
from easyscale.cli.plan.model import Machine, slowest
from easyscale.cli.plan.packing import FormCost, cost_of

SLOW = Machine(compute=1.0, latency=0.001, bandwidth=1e6, memory=1e12)
NBYTES = 4_000_000
MESSAGES = FormCost(share=0.25, pack=1e-7, unpack=2e-7)
WHOLE = FormCost(share=0.01, pack=5e-7, unpack=0.0, sums=2, by_message=False)


def _planned(machine=SLOW, names=("ring",), ranks=(1, 2), **costs):
    return plan_forms(costs, {name: exchange.get(name) for name in names}, [*ranks], NBYTES, machine)


def test_a_step_in_a_form_by_hand():
    messages, whole = _planned(messages=MESSAGES, whole=WHOLE)
    none = (
        1 + 2 * 0.001 + 4.0 + 6e-6
    )  # of four megabytes half go there, half come back; half is read twice, written once
    assert (messages.ranks, messages.exchange, messages.form, messages.bytes) == (2, "ring", "messages", 1_000_000)
    assert messages.packing == pytest.approx(2e6 * 1e-7 + 4e6 * 2e-7)
    assert messages.seconds == pytest.approx(1 + 0.002 + 1.0 + 6e-6 + 1.0)
    assert messages.faster == pytest.approx(none / messages.seconds)
    assert whole.packing == pytest.approx(4e6 * 5e-7)
    assert whole.seconds == pytest.approx(1 + 2 * 0.002 + 0.04 + 6e-6 + 2.0)


def test_the_bandwidth_below_which_a_form_pays_is_where_packing_takes_what_it_saves():
    messages, whole, never = _planned(messages=MESSAGES, whole=WHOLE, never=MESSAGES._replace(share=1.5))
    assert messages.pays_below == pytest.approx(0.75 * 4e6 / 1.0, rel=1e-3)
    assert whole.pays_below == pytest.approx(0.99 * 4e6 / (2.0 + 0.002), rel=1e-3)  # and one more sum's latency
    assert never.pays_below == 0


def test_what_is_hidden_is_not_saved():
    """Half of the wire's time is hidden, and none of the packing's."""
    hides = SLOW._replace(compute=10.0, overlap=0.5)
    (row,) = _planned(hides, messages=MESSAGES)
    assert row.pays_below == pytest.approx(0.75 * 4e6 / 2 / 1.0, rel=1e-3)
    other = hides._replace(bandwidth=row.pays_below)
    (row,) = _planned(other, messages=MESSAGES)
    assert row.faster == pytest.approx(1.0, rel=1e-3)
    assert row.seconds == pytest.approx(10 + (0.002 + 1e6 / other.bandwidth + 6e-6) / 2 + 1.0)


def test_ranks_wait_as_long_with_a_form_as_without():
    (row,) = _planned(SLOW._replace(spread=0.1), messages=MESSAGES)
    (even,) = _planned(messages=MESSAGES)
    assert row.seconds - even.seconds == pytest.approx(0.1 * slowest(2))


def test_a_form_goes_along_the_fastest_exchange_that_sends_messages():
    names = ("mpi", "parameter_server:async", "ring", "shared_memory", "tree")
    assert [row.exchange for row in _planned(names=names, ranks=(2, 4), messages=MESSAGES)] == ["ring", "ring"]
    on_node = SLOW._replace(ranks_per_node=4)
    assert _planned(on_node, names=("hierarchical", "shared_memory"), ranks=(4,), messages=MESSAGES) == []


@pytest.mark.parametrize("name", sorted(compression.available()))
def test_what_a_form_costs_here(name):
    form = compression.available()[name]()
    cost = cost_of(form)
    segment = np.zeros(1 << 16, "float32")
    parts = {"random_k": 0.01, "power_sgd": 4 * (1024 + 1024) / 1024**2}
    part = parts.get(name) or form.pack(segment).size / segment.nbytes
    assert cost.share == pytest.approx(part, rel=1e-3)
    assert cost.pack > 0
    assert cost.by_message == (cost.unpack > 0) == isinstance(form, compression.Packing)


def test_a_plan_says_below_which_bandwidth_forms_pay(cli, tmp_path):
    file = tmp_path / "plan.json"
    options = ["--ranks", "1,2,8", "--bandwidth", "100Mbit", "--compression", "int8,one_bit", "--json", str(file)]
    done = cli("plan", *options)
    assert "pays below" in done.stdout
    forms = json.loads(file.read_text())["forms"]
    assert [(row["ranks"], row["form"]) for row in forms] == [(2, "int8"), (2, "one_bit"), (8, "int8"), (8, "one_bit")]
    assert forms[0]["bytes"] == pytest.approx(0.252 * 4 * 25_583_592, rel=1e-3)
    assert all((row["faster"] > 1) == (row["pays_below"] > 12.5e6) for row in forms)


@pytest.mark.parametrize("options", [["--ranks", "1"], ["--ranks", "2", "--exchanges", "parameter_server:async"]])
def test_where_nothing_is_packed_there_is_a_line_and_no_table(cli, options):
    done = cli("plan", *options, "--compression", "int8")
    assert done.exit_code == 0
    assert "no form can be used" in done.stdout
    assert "pays below" not in done.stdout


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--compression", "int9"], "`--compression` must be one of"),
        (["--compression", "int8", "--stages", "2", "--ranks", "2"], "--stages must be without --compression"),
    ],
)
def test_bad_input_is_told_in_one_line(cli, options, line):
    done = cli("plan", *options)
    assert done.exit_code == 2
    assert line in done.stderr
