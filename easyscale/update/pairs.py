"""Mixing of weights in pairs, until the data of all workers have ended, without a collective of all."""

from collections.abc import Sequence

import keras
import numpy as np

from easyscale.backend import view_of
from easyscale.communicator import Communicator
from easyscale.errors import DesyncError
from easyscale.layout.bucket import plan
from easyscale.layout.specs import specs_of

__all__ = ["Pairs"]


class Pairs:
    """The weights of a worker, which are averaged with another's.

    In round `t` each worker sends to the one `2^(t mod k)` ranks after it, `k = ceil(log2 P)`. In `k` rounds from one
    with `t mod k` = 0, information from every worker reaches all others. So each message also has a flag, set if no
    worker known to its sender had more data: all workers learn of the end in the same round.

    Args:
        communicator: All workers.
        variables: The weights, the same on all workers.
    """

    def __init__(self, communicator: Communicator, variables: Sequence[keras.Variable]):
        self._communicator, self._variables = communicator, list(variables)
        self._turns = max(1, (communicator.size - 1).bit_length())
        self._buckets = plan(specs_of(variables))
        self._round, self._all_ended = 0, False

    def mix(self, has_data: bool) -> bool:
        """Average this worker's weights with another's; return whether no worker has more data.

        All workers must call this equally often.

        Args:
            has_data: Bool. Whether this worker may have more.

        Raises:
            DesyncError: If the other worker is in another round.
        """
        turn = self._round % self._turns
        self._all_ended = not has_data and (turn == 0 or self._all_ended)
        communicator, distance = self._communicator, 1 << turn
        to, source = (communicator.rank + distance) % communicator.size, communicator.rank - distance
        source %= communicator.size
        communicator.progress.purpose = "weights that mix in pairs"  # for stall reports
        told = np.array([self._round, self._all_ended], np.int64)
        sent, came = [told, *self._packed()], [np.empty_like(told)]
        came += [np.empty_like(vector) for vector in sent[1:]]
        receives = [communicator.ireceive(buffer, source) for buffer in came]
        sends = [communicator.isend(buffer, to) for buffer in sent]
        for request in [*receives, *sends]:
            request.wait()
        number, ended = came[0].tolist()
        if number != self._round:
            raise DesyncError(
                f"workers must mix their weights equally often. Received: round {self._round} on rank "
                f"{communicator.rank}, and round {number} on rank {source}. Start the job again"
            )
        self._take(sent[1:], came[1:])
        self._round += 1
        self._all_ended &= bool(ended)
        return self._all_ended and turn == self._turns - 1

    def _packed(self) -> list[np.ndarray]:
        vectors = []
        for bucket in self._buckets:
            vectors.append(np.zeros(bucket.length, bucket.dtype))
            own = {slot.index: view_of(self._variables[slot.index]) for slot in bucket.slots}
            bucket.pack(own, vectors[-1], 1.0)
        return vectors

    def _take(self, sent: Sequence[np.ndarray], came: Sequence[np.ndarray]) -> None:
        for bucket, own, other in zip(self._buckets, sent, came, strict=True):
            mean = (0.5 * (own + other)).astype(bucket.dtype)
            for index, value in bucket.unpack(mean).items():
                self._variables[index].assign(value)
