"""Which form "auto" stands for, by threads that stand for ranks, each at the end of a line or without one."""

import re

import numpy as np
import pytest

from easyscale import communicator, compression, exchange
from easyscale.choice import choose_form, of_form
from easyscale.choice.of_form import CANDIDATES
from easyscale.communicator.throttled import Line, Throttled
from easyscale.exchange.compressed import Compressed
from easyscale.layout.specs import Spec

FLOAT32 = np.dtype("float32")
LONG, SHORT = [Spec((1000, 2000), FLOAT32)], [Spec((1000, 249), FLOAT32)]  # 8 MB, and less than 1 MB
SLOW, FAST = Line(1.25e7), Line()  # 100 Mbit/s, and as much as there is


def _choices(line, specs, name="ring", ranks=2, **options):
    """What each rank chooses on a host of its own, at the end of a line of its own."""

    def on_rank(comm):
        own = Throttled(comm, Line(line.bandwidth, line.latency))
        return choose_form(exchange.get(name, own), specs, **options)

    found = communicator.run_ranks(ranks, on_rank)
    assert all(choice == found[0] for choice in found)
    return found[0]


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_int8_wins_on_a_slow_network_and_the_line_says_what_each_takes(name):
    chosen = _choices(SLOW, LONG, name, bucket_bytes=1 << 22)
    assert chosen.form == compression.get("int8")
    assert [timing.form for timing in chosen.timings] == ["none", *CANDIDATES]
    least = {"none": 8e6, "bf16": 4e6, "int8": compression.get("int8").nbytes(2_000_000)}  # half there, half back
    for form, seconds, nbytes in chosen.timings:
        assert nbytes == pytest.approx(least[form], rel=0.01)
        assert seconds >= nbytes / SLOW.bandwidth
    parts = r"compression: int8, 2\.02 MB in [\d.]+ ms a step; none, 8 MB in [\d.]+ ms, bf16, 4 MB in [\d.]+ ms"
    assert re.fullmatch(parts, chosen.reason), chosen.reason


@pytest.mark.parametrize("faster", [1.0, 1.29])
def test_none_wins_where_forms_are_hardly_faster(monkeypatch, faster):
    """As on a fast network, where what is saved on the way is spent on packing: how long it takes is said here."""

    def seconds_of(step, comm):
        before = comm.sent.bytes
        step()
        return 1.0 if comm.sent.bytes - before > 7e6 else 1.0 / faster

    monkeypatch.setattr(of_form, "seconds_of", seconds_of)
    chosen = _choices(FAST, LONG)
    assert (chosen.form, len(chosen.timings)) == (None, 3)
    assert chosen.reason.startswith("compression: none, 8 MB in ")
    assert chosen.reason.endswith("; a form must be 1.3 times as fast")


def test_where_weights_come_back_only_the_way_there_is_shorter():
    sent = {timing.form: timing.bytes for timing in _choices(SLOW, LONG, gathers=False).timings}
    assert sent["none"] == pytest.approx(8e6, rel=0.01)
    assert sent["bf16"] == pytest.approx(6e6, rel=0.01)


def test_gradients_of_half_types_travel_as_they_are():
    specs = [*LONG, Spec((1000, 2000), np.dtype("float16"))]
    sent = {timing.form: timing.bytes for timing in _choices(SLOW, specs).timings}
    assert sent["bf16"] == pytest.approx(4e6 + 4e6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "specs", "line"),
    [
        ("ring", SHORT, "as a step has 1 MB of float32 gradients only"),
        ("ring", [Spec((1000, 2000), np.dtype("float16"))], "as a step has 0 MB of float32 gradients only"),
        ("mpi", LONG, "as of the exchange 'mpi' its sums are the MPI library's, which takes numbers as they are"),
    ],
    ids=["short", "half types", "mpi"],
)
def test_nothing_is_measured_where_no_form_can_pay(name, specs, line):
    assert _choices(SLOW, specs, name) == (None, [], f"compression: none, {line}")


def test_nothing_is_measured_on_one_node_nor_beside_another_form():
    def on_rank(comm):
        own = Compressed(exchange.get("ring", Throttled(comm, FAST)), compression.FP16())
        return choose_form(exchange.get("ring", comm), LONG), choose_form(own, LONG)

    for on_node, beside in communicator.run_ranks(2, on_rank):
        assert on_node == (None, [], "compression: none, as all ranks are on one node")
        assert beside == (None, [], "compression: none, as the exchange 'ring fp16' has a form")


def test_what_competes_keeps_no_error_and_the_range_of_float32():
    for form in map(compression.get, CANDIDATES):
        vector = np.array([3e38, -1e-30, 0, 0], FLOAT32).repeat(512)
        back = np.empty_like(vector)
        form.unpack(form.pack(vector), back)
        np.testing.assert_allclose(back, vector, rtol=0.005)
        assert not form.keeps_error
