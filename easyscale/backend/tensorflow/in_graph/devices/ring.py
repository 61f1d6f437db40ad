"""The ring of devices."""

from collections.abc import Sequence

import tensorflow as tf

from easyscale.backend.tensorflow.in_graph.device_exchange import DeviceExchange, joined
from easyscale.exchange import Cost

__all__ = ["Ring"]


class Ring(DeviceExchange):
    """Pass parts around a ring of devices: reduce-scatter, then all-gather.

            0 --> 1
            ^     |        each arrow carries one part of S / D bytes
            3 <-- 2

    With `D` devices and a vector of `S` bytes each sends `2 * (D - 1)` parts to the next, one after the other, and
    `2 * S * (D - 1) / D` bytes. Device `d` owns the `d`-th part.

    Reference: Patarasuk & Yuan, 2009.
    """

    @staticmethod
    def cost(devices: int, nbytes: int) -> Cost:
        steps = 2 * (devices - 1)
        return Cost(steps, steps, steps * nbytes // devices)

    def reduce(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        parts, count = self._parts(vectors), len(self.devices)
        sums = []
        for owner in range(count):
            total = parts[(owner + 1) % count][owner]
            for step in range(2, count + 1):  # around the ring, ending at the owner
                index = (owner + step) % count
                with tf.device(self.devices[index]):
                    total = total + parts[index][owner]
            sums.append(total)
        return sums

    def gather(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        count = len(self.devices)
        arrived = [[None] * count for _ in range(count)]
        for owner, part in enumerate(parts):
            for step in range(count):
                index = (owner + step) % count
                with tf.device(self.devices[index]):
                    part = tf.identity(part)
                arrived[index][owner] = part
        wholes = []
        for device, pieces in zip(self.devices, arrived, strict=True):
            with tf.device(device):
                wholes.append(joined(pieces))
        return wholes
