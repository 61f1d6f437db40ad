"""The choice made by compression="auto": the one that is clearly fastest for a model's own gradients, or none."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from easyscale import compression
from easyscale.choice.measuring import FASTER, SHORT_BYTES, bytes_of, seconds_of, vectors_of_a_step
from easyscale.communicator.data_axis import everyone_of
from easyscale.compression import Compression, StepOfForm
from easyscale.exchange import Exchange
from easyscale.layout.specs import Spec

__all__ = ["CANDIDATES", "FormChoice", "FormTiming", "choose_form"]

# From the least rounding to the most. Both keep every number of a gradient, with an error bounded relative to itself or
# its block, over the whole range of float32, and defer nothing to later steps. So they suit every model, optimizer,
# loss scale and checkpoint unchanged. fp16 lacks the range, and the others omit most of a gradient for a while, which
# requires a tuned rate, fraction or rank.
CANDIDATES = ("bf16", "int8")
_FLOAT32 = np.dtype("float32")


class FormTiming(NamedTuple):
    """The time to pack, send and unpack a step's gradients with one compression, with nothing else running.

    Attributes:
        form: String. The compression's name, or `"none"`.
        seconds: Float. The median, on the slowest rank.
        bytes: Int. The bytes sent by the rank that sends most.
    """

    form: str
    seconds: float
    bytes: int


class FormChoice(NamedTuple):
    """A compression, and the reason for it.

    Attributes:
        form: `Compression`, or `None` for no compression.
        timings: List of `FormTiming`, one for each candidate.
        reason: String. One line for the user.
    """

    form: Compression | None
    timings: list[FormTiming]
    reason: str


def choose_form(
    exchange: Exchange, specs: Sequence[Spec], bucket_bytes: int | None = None, gathers: bool = True
) -> FormChoice:
    """Choose a compression, or none. All ranks must call this together, and get the same answer.

    A compression is chosen if it takes less than 1 / 1.3 of the time of the best that rounds less. None is chosen,
    without measuring, if little or nothing is sent through a network.

    Args:
        exchange: The connected `Exchange` for gradients.
        specs: `Spec` of each gradient.
        bucket_bytes: Int. See `bucket.plan`. Defaults to `None`.
        gathers: Bool. Whether the sum is sent back compressed; otherwise weights are sent back, uncompressed. Defaults
            to `True`.
    """
    if reason := _nothing_to_gain(exchange, specs):
        return FormChoice(None, [], f"compression: none, as {reason}")
    timings = [_measure(exchange, None, specs, bucket_bytes, gathers)]
    chosen = timings[0]
    for name in CANDIDATES:
        timings.append(_measure(exchange, compression.get(name), specs, bucket_bytes, gathers))
        if FASTER * timings[-1].seconds < chosen.seconds:
            chosen = timings[-1]
    # Ranks of a group must sum the same way.
    names = everyone_of(exchange.communicator).all_gather_object(chosen.form)
    chosen = next(timing for timing in timings if timing.form == names[0])
    form = None if chosen is timings[0] else compression.get(chosen.form)
    return FormChoice(form, timings, _explain(chosen, timings))


def _nothing_to_gain(exchange: Exchange, specs: Sequence[Spec]) -> str | None:
    """Return the reason why no compression can pay, or `None` if one may."""
    if len(exchange.communicator.nodes) == 1:
        return "all ranks are on one node"
    nbytes = bytes_of([spec for spec in specs if np.dtype(spec[1]) == _FLOAT32])
    if nbytes < SHORT_BYTES:
        return f"a step has {nbytes / 1e6:.2g} MB of float32 gradients only"
    if not exchange.is_exact:
        return f"the exchange '{exchange.name}' has a form"
    reasons = (compression.available()[name]().why_not(exchange) for name in CANDIDATES)
    return next((f"of the exchange '{exchange.name}' {reason}" for reason in reasons if reason), None)


def _measure(
    exchange: Exchange, form: Compression | None, specs: Sequence[Spec], bucket_bytes: int | None, gathers: bool
) -> FormTiming:
    vectors = vectors_of_a_step(exchange, specs, bucket_bytes)
    numbers = np.random.default_rng(0).normal(scale=1e-3, size=1 << 16)
    for gradients, weights in vectors:
        gradients[:] = np.resize(numbers, gradients.size)
        weights[:] = 0

    communicator, sent = exchange.communicator, []

    def step() -> None:
        before = communicator.sent.bytes
        for gradients, weights in vectors:
            if form is None or gradients.dtype != _FLOAT32:
                exchange.reduce(gradients)
            else:
                form.sum(exchange, gradients, StepOfForm(0, [], {}), gathers=gathers)
                if gathers:
                    continue
            exchange.gather(weights)
        sent.append(communicator.sent.bytes - before)

    seconds = seconds_of(step, communicator)
    return FormTiming("none" if form is None else form.name, seconds, max(communicator.all_gather_object(sent[0])))


def _explain(chosen: FormTiming, timings: list[FormTiming]) -> str:
    first, *others = [chosen, *(timing for timing in timings if timing is not chosen)]
    beside = ", ".join(map(_of, others))
    why = "" if chosen is not timings[0] else f"; a form must be {FASTER:g} times as fast"
    return f"compression: {_of(first)} a step; {beside}{why}"


def _of(timing: FormTiming) -> str:
    return f"{timing.form}, {timing.bytes / 1e6:.3g} MB in {1e3 * timing.seconds:.3g} ms"
