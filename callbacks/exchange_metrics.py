"""Metrics of the exchange, in the logs of each epoch."""

from typing import Any

import keras

from easyscale import communicator as communicators
from easyscale import replication
from easyscale.communicator import Communicator
from easyscale.timeline import Part

__all__ = ["ExchangeMetrics"]

_TIMES = {"exchange_ms": (Part.EXCHANGE, Part.GATHER), "wait_ms": (Part.WAIT,), "data_ms": (Part.DATA,)}


class ExchangeMetrics(keras.callbacks.Callback):
    """Add metrics of the exchange to the logs of each epoch, for `History`, `CSVLogger`, `TensorBoard`.

    - `exchange_messages`, `exchange_bytes`: messages and bytes that this worker sends in a step, on average. Reads from
      the memory of other workers on the same node do not count.
    - `exchange_ms`: milliseconds of a step in which gradients and weights are exchanged.
    - `wait_ms`: milliseconds in which this worker waits for others that are behind.
    - `data_ms`: milliseconds in which it waits for its own data.

    The times exclude steps that are traced or compiled, and exchanges that overlap with the backward pass. With one
    worker all metrics are 0; with `--elastic`, `--servers` and in-graph replication all times are 0. The chief's
    `History` has the chief's metrics. All workers must have this callback, before those that write the logs. Recording
    the times takes less than 2 % of a step.

    Args:
        communicator: An argument of `easyscale.communicator.get`, the same as for `Distribute`. Defaults to `None`.

    Example:

    >>> callbacks = [easyscale.callbacks.Distribute(), easyscale.callbacks.ExchangeMetrics()]
    >>> history = model.fit(x, y, verbose=0, callbacks=callbacks)
    >>> history.history["exchange_bytes"]  # with one worker
    [0.0]
    """

    def __init__(self, communicator: str | Communicator | None = None):
        super().__init__()
        self._communicator = communicators.get(communicator)
        self._steps = self._counted = 0
        self._was_on = False
        self._sent, self._now = (0, 0), (0, 0)
        self._times: dict[str, int] = {}

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        communicator, in_graph = self._communicator, replication.check(None) == "in_graph"
        self._was_on = communicator.timeline.is_on
        records = not (communicator.membership.is_elastic or communicator.servers or in_graph)
        communicator.timeline.is_on = records  # set before `fit()` begins, on all workers

    def on_train_end(self, logs: dict | None = None) -> None:
        self._communicator.timeline.is_on = self._was_on  # another `fit()` may not need it

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        timeline = self._communicator.timeline
        self._steps, self._counted, self._times = 0, timeline.steps, dict(timeline.times)
        self._sent = self._now = self._traffic()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._steps, self._now = batch + 1, self._traffic()  # excludes validation and the merging of metrics

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if logs is None:
            return
        timeline, steps = self._communicator.timeline, max(1, self._steps)
        names = "exchange_messages", "exchange_bytes"
        logs |= {name: (now - before) / steps for name, now, before in zip(names, self._now, self._sent, strict=True)}
        counted = max(1, timeline.steps - self._counted)
        for name, parts in _TIMES.items():
            spent = sum(timeline.times[part] - self._times.get(part, 0) for part in parts)
            logs[name] = 1e-6 * spent / counted

    def _traffic(self) -> tuple[int, int]:
        sent = self._communicator.sent
        return sent.messages, sent.bytes
