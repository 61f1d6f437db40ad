"""A server's side: owns a part of the weights, applies gradients as they arrive, and sends weights."""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from easyscale.communicator import Communicator, Request, Wait
from easyscale.errors import LostError
from easyscale.layout.specs import Spec
from easyscale.serving import messages
from easyscale.serving.messages import Kind
from easyscale.serving.rules import Rule

__all__ = ["Server"]


class Server:
    """Server for the part of the weights that this rank owns.

    The weights are vectors, one for each dtype, of which this rank owns a part. For each gradient it receives a request
    and its part of the gradient; for each pull it sends a reply and its part of the weights.

    Args:
        requests: `Communicator` for the messages from the workers.
        replies: `Communicator` for the messages to them.
        rule: `Rule`.
        specs: `Spec` of this rank's part of each vector.
        update: Function that makes a step. Takes a gradient as a list of vectors; the chief's learning rate, or `None`
            until the chief has sent one in this epoch; for each variable whether it has a gradient, or `None` if all
            have one.
        read: Function without arguments. Returns the current weights as new vectors.
        delay_compensation: Float. See `ParameterServer`.

    Attributes:
        stop: Bool. Whether a worker has stopped training.
    """

    def __init__(
        self,
        requests: Communicator,
        replies: Communicator,
        rule: Rule,
        specs: Sequence[Spec],
        update: Callable[[list[np.ndarray], float | None, np.ndarray | None], None],
        read: Callable[[], list[np.ndarray]],
        delay_compensation: float = 0.0,
    ):
        self._requests, self._replies = requests, replies
        self.rule, self._specs, self._update, self._read = rule, specs, update, read
        self._delay_compensation = delay_compensation
        self._rows = [np.zeros(1, messages.Request) for _ in range(requests.workers)]
        self._gradients: list[list[np.ndarray]] = [[] for _ in range(requests.workers)]
        self._samples = [0.0] * requests.workers  # in each gradient
        self._flags: list[np.ndarray | None] = [None] * requests.workers  # which variables have one
        self.stop = False
        self.lost: dict[int, int] = {}  # for each worker that has failed in this epoch, the number of its steps

    def serve(self) -> None:
        """Serve one epoch, until all workers have reached the end of their data."""
        rule, self.stop, self.lost = self.rule, False, {}
        self._rate: float | None = None
        rule.begin_epoch()
        self._weights: list[np.ndarray] | None = None  # as last sent, if they have not changed since
        # The weights that each worker has; they are needed to correct its gradient.
        self._pulled = [self._current()] * len(self._rows) if self._delay_compensation else []
        waiting: list[int] = []  # the workers that wait for weights, in the order in which they came
        replies: list[tuple[Request, np.ndarray]] = []  # in progress, with their buffers
        listening = {worker: self._listen(worker) for worker in range(len(self._rows))}
        while listening:
            wait = Wait("serves", lambda: list(listening), stalls=False, notices=True)
            self._requests.poll(lambda: any(map(_is_due, listening.values())), wait)
            for worker in [worker for worker, request in listening.items() if _is_due(request)]:
                try:
                    listening.pop(worker).wait()
                    kind = self._handle(worker)
                except LostError:
                    kind = self._lose(worker)
                    waiting = [other for other in waiting if other != worker]
                if kind & Kind.PULL:
                    rule.ask(worker)
                    waiting.append(worker)
                if kind != Kind.END:
                    listening[worker] = self._listen(worker)
            while (ready := next(filter(rule.may_pull, waiting), None)) is not None:
                waiting.remove(ready)
                replies = [reply for reply in replies if not _is_due(reply[0])]
                with contextlib.suppress(LostError):  # the next receive from it fails, too
                    replies += self._answer(ready)
        for request, _ in replies:
            with contextlib.suppress(LostError):
                request.wait()
        self._weights = None
        self._pulled = []

    def _listen(self, worker: int) -> Request:
        return self._requests.ireceive(self._rows[worker], worker)

    def _handle(self, worker: int) -> Kind:
        row = self._rows[worker][0]
        kind, steps = Kind(int(row["kind"])), int(row["steps"])
        self.stop = self.stop or bool(row["stop"])
        if kind == Kind.END:
            self._step(self.rule.end(worker))
            return kind
        if worker == 0:
            self._rate = float(row["rate"])
        if kind & Kind.PUSH:
            self._samples[worker] = float(row["weight"])
            self._flags[worker] = np.empty(int(row["flags"]), np.uint8) if row["flags"] else None
            if not self._gradients[worker]:
                self._gradients[worker] = [np.empty(*spec) for spec in self._specs]
            for part in (self._flags[worker], *self._gradients[worker]):
                if part is not None:
                    self._requests.receive(part, worker)
            self._step(self.rule.push(worker, steps))
        else:
            self.rule.move(worker, steps)
        return kind

    def _lose(self, worker: int) -> Kind:
        """Handle the failure of a worker. A gradient that it had begun to send is not counted."""
        self.lost[worker] = self.rule.steps[worker]
        self._step(self.rule.end(worker))
        return Kind.END

    def shrink(self, lost: Sequence[int]) -> None:
        """Serve only the other workers, which are renumbered, from the next epoch on."""
        kept = [worker for worker in range(len(self._rows)) if worker not in lost]
        self._rows = [self._rows[worker] for worker in kept]
        self._gradients = [self._gradients[worker] for worker in kept]
        self._samples = [self._samples[worker] for worker in kept]
        self._flags = [self._flags[worker] for worker in kept]
        self.rule.shrink(len(lost))

    def _step(self, workers: list[int]) -> None:
        """Apply the mean of some workers' gradients, weighted by samples."""
        if not workers:
            return
        if self._delay_compensation:
            for worker in workers:
                self._compensate(self._gradients[worker], self._pulled[worker])
        total = sum(self._samples[worker] for worker in workers)
        gradient = self._gradients[workers[0]]
        if len(workers) > 1:
            for worker in workers:
                for part in self._gradients[worker]:
                    part *= part.dtype.type(self._samples[worker] / total if total else 0)
                if worker != workers[0]:
                    for part, other in zip(gradient, self._gradients[worker], strict=True):
                        part += other
        flags = [flag for worker in workers if (flag := self._flags[worker]) is not None]
        some = np.bitwise_or.reduce(flags) if len(flags) == len(workers) else None
        self._update(gradient, self._rate, some)
        self._weights = None

    def _compensate(self, gradient: list[np.ndarray], then: list[np.ndarray]) -> None:
        for part, now, before in zip(gradient, self._current(), then, strict=True):
            part += part.dtype.type(self._delay_compensation) * part * part * (now - before)

    def _current(self) -> list[np.ndarray]:
        """Return the current weights, in vectors that are never written to again."""
        if self._weights is None:
            self._weights = self._read()
        return self._weights

    def _answer(self, worker: int) -> list[tuple[Request, np.ndarray]]:
        """Send the weights to a worker; return the requests, each with its buffer."""
        self.rule.pull(worker)
        reply = np.zeros(1, messages.Reply)
        reply[0] = self.rule.together, self.stop
        if self._pulled:
            self._pulled[worker] = self._current()
        return [(self._replies.isend(message, worker), message) for message in (reply, *self._current())]


def _is_due(request: Request) -> bool:
    """Return whether `request.wait()` would return, or raise, immediately."""
    try:
        return request.done()
    except LostError:
        return True
