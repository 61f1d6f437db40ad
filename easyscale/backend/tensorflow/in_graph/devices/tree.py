"""The tree of devices."""

from collections.abc import Sequence

import tensorflow as tf

from easyscale.backend.tensorflow.in_graph.device_exchange import DeviceExchange
from easyscale.exchange import Cost, Exchange

__all__ = ["Tree"]


class Tree(DeviceExchange):
    """Sum up a binomial tree to the first device, which owns everything, then send back down.

        0 <-- 1     0 <------- 2          each arrow carries the whole vector, of S bytes
        2 <-- 3

    With `D` devices `2 * ceil(log2 D)` vectors are sent one after another. The first device sends `ceil(log2 D) * S`
    bytes, on the way down; no other sends as much.

    Reference: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.
    """

    def __init__(self, devices: Sequence[str], between: Exchange | None = None):
        super().__init__(devices, between)
        self.owners = self.devices[:1]

    @staticmethod
    def cost(devices: int, nbytes: int) -> Cost:
        height = (devices - 1).bit_length()
        return Cost(2 * height, height, height * nbytes)

    def reduce(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        sums, count = list(vectors), len(self.devices)
        for distance in self._distances():
            for index in range(0, count - distance, 2 * distance):
                with tf.device(self.devices[index]):
                    sums[index] = sums[index] + sums[index + distance]
        return sums[:1]

    def gather(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        count = len(self.devices)
        wholes = [parts[0], *[None] * (count - 1)]
        for distance in reversed(self._distances()):
            for index in range(0, count - distance, 2 * distance):
                with tf.device(self.devices[index + distance]):
                    wholes[index + distance] = tf.identity(wholes[index])
        return wholes

    def _distances(self) -> list[int]:
        return [1 << level for level in range((len(self.devices) - 1).bit_length())]
