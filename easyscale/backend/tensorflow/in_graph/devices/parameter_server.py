"""Devices as parameter servers."""

from collections.abc import Sequence

import tensorflow as tf

from easyscale.backend.tensorflow.in_graph.device_exchange import DeviceExchange, joined
from easyscale.exchange import Cost, Exchange

__all__ = ["ParameterServer"]


class ParameterServer(DeviceExchange):
    """Send each part to the device that owns it, which sums, and sends the result to all others.

        0 --> 1    2 --> 1    3 --> 1        and so to each owner; each arrow carries S / D bytes

    With `D` devices and a vector of `S` bytes each device owns `1 / D` of it, and sends `2 * (D - 1)` parts of `S / D`
    bytes. Parts for different owners are sent concurrently. With `servers_device`, an option of the exchange between
    processes, such as `"/CPU:0"`, that device owns everything: each other sends `S` bytes, and it sends `S` to each.

    Reference: Li et al., "Scaling distributed machine learning with the parameter server", 2014.
    """

    def __init__(self, devices: Sequence[str], between: Exchange | None = None):
        super().__init__(devices, between)
        server = getattr(between, "servers_device", None)
        if server is not None:
            self.owners = [server]

    @staticmethod
    def cost(devices: int, nbytes: int) -> Cost:
        messages = 2 * (devices - 1)
        return Cost(2, messages, messages * nbytes // devices)

    def reduce(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        parts, sums = self._parts(vectors), []
        for number, owner in enumerate(self.owners):
            with tf.device(owner):
                sums.append(tf.add_n([local[number] for local in parts]))
        return sums

    def gather(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        wholes = []
        for device in self.devices:
            with tf.device(device):
                wholes.append(joined(parts))
        return wholes
