"""A worker's side: pushes gradients to all servers and pulls the weights."""

from collections.abc import Sequence

import numpy as np

from easyscale.communicator import Communicator
from easyscale.serving import messages
from easyscale.serving.messages import Kind

__all__ = ["Client"]


class Client:
    """A worker's connection to the servers, through which it pushes gradients and pulls weights.

    Args:
        requests: `Communicator` for the messages to the servers.
        replies: `Communicator` for the messages from them.
        owners: For each server, its rank and its slice of each vector.
        push_every: Int. See `ParameterServer`.
        pull_every: Int. See `ParameterServer`.

    Attributes:
        steps: Int. The number of this worker's steps in this epoch; after a step that came too late, that of all.
        missed: Int. The number of steps that the others have made without this worker, and that it has not skipped yet.
        stop: Bool. Whether another worker has stopped training.
    """

    def __init__(
        self,
        requests: Communicator,
        replies: Communicator,
        owners: Sequence[tuple[int, Sequence[slice]]],
        push_every: int = 1,
        pull_every: int = 1,
    ):
        self._requests, self._replies, self._owners = requests, replies, owners
        self._push_every, self._pull_every = push_every, pull_every
        self._sum: list[np.ndarray] = []  # of the gradients that have not been pushed
        self._last = 0.0, 0.0  # weight and learning rate
        self._flags: np.ndarray | None = None
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Start an epoch, in which this worker has the servers' weights."""
        self.steps = self.missed = self._unpushed = 0
        self.stop = False

    def step(
        self,
        gradients: Sequence[np.ndarray],
        weights: Sequence[np.ndarray],
        weight: float,
        rate: float,
        flags: np.ndarray | None = None,
    ) -> bool:
        """Push gradients and pull weights, if they are due. Return whether `weights` have been updated.

        Args:
            gradients: One vector for each dtype, laid out the same way on all workers.
            weights: Vectors to overwrite.
            weight: Float. The number of samples in the gradients.
            rate: Float. This worker's learning rate.
            flags: One byte for each variable, 1 if it has a gradient. Defaults to `None`: all have one.
        """
        self.steps += 1
        self._last = weight, rate
        self._flags = flags if self._unpushed == 0 or flags is None or self._flags is None else self._flags | flags
        pushes, pulls = self.steps % self._push_every == 0, self.steps % self._pull_every == 0
        if self._push_every > 1:
            gradients = self._accumulate(gradients)
        if pushes or pulls:
            kind = (Kind.PUSH if pushes else Kind.END) | (Kind.PULL if pulls else Kind.END)  # END is 0
            self._send(kind, gradients if pushes else ())
        self._unpushed = 0 if pushes else self._unpushed + 1
        if pulls:
            self._receive(weights)
        return pulls

    def skip(self, steps: int) -> bool:
        """Return whether the others have made `steps` steps without this worker, which then must skip them."""
        skips = self.missed >= steps
        self.missed -= steps * skips
        return skips

    def shrink(self, lost: Sequence[int]) -> None:
        """Renumber the servers after these ranks, all of them workers, have been left out."""
        self._owners = [(owner - sum(rank < owner for rank in lost), parts) for owner, parts in self._owners]

    def _accumulate(self, gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
        if not self._sum:
            self._sum = [np.zeros_like(gradient) for gradient in gradients]
        for total, gradient in zip(self._sum, gradients, strict=True):
            np.copyto(total, gradient) if self._unpushed == 0 else np.add(total, gradient, out=total)
        return self._sum

    def end_epoch(self, stop: bool) -> None:
        """Push the remaining gradients, and notify the servers that this worker has no more data in this epoch.

        Args:
            stop: Bool. Whether training stops.
        """
        if self._unpushed:
            self._send(Kind.PUSH, self._sum)
            self._unpushed = 0
        self._send(Kind.END, (), stop)

    def _send(self, kind: Kind, gradients: Sequence[np.ndarray], stop: bool = False) -> None:
        row = np.zeros(1, messages.Request)
        flags = [self._flags] if kind & Kind.PUSH and self._flags is not None else []
        row[0] = int(kind), self.steps, *self._last, stop, sum(map(len, flags))
        sends = []
        for owner, parts in self._owners:
            sends += [self._requests.isend(message, owner) for message in (row, *flags)]
            sends += [
                self._requests.isend(gradient[part], owner) for gradient, part in zip(gradients, parts, strict=False)
            ]
        for send in sends:
            send.wait()

    def _receive(self, weights: Sequence[np.ndarray]) -> None:
        rows = [np.zeros(1, messages.Reply) for _ in self._owners]
        requests = []
        for row, (owner, parts) in zip(rows, self._owners, strict=True):
            requests.append(self._replies.ireceive(row, owner))
            requests += [
                self._replies.ireceive(weight[part], owner) for weight, part in zip(weights, parts, strict=True)
            ]
        for request in requests:
            request.wait()
        together = max(int(row[0]["steps"]) for row in rows)
        self.missed += max(0, together - self.steps)
        self.steps = max(self.steps, together)
        self.stop = self.stop or any(bool(row[0]["stop"]) for row in rows)
