"""The base class of exchanges between the devices of one process, as operations of its graph."""

import abc
from collections.abc import Sequence

import tensorflow as tf

from easyscale.exchange import Cost, Exchange

__all__ = ["DeviceExchange", "joined"]


class DeviceExchange(abc.ABC):
    """An algorithm that sums a vector over the devices of one process.

    Every element of the vector has one owner, as between processes. `reduce` brings each owner its part of the sum,
    `gather` brings the parts to every device.

    Args:
        devices: List of names of devices.
        between: The `Exchange` between processes, which may have options for devices. Defaults to `None`.

    Attributes:
        devices: List of names of devices.
        owners: List of names of the devices that own a part, in the order of the parts.
        only_on_gpus: Bool. Whether all devices must be GPUs.
    """

    only_on_gpus = False

    def __init__(self, devices: Sequence[str], between: Exchange | None = None):
        self.devices = self.owners = list(devices)

    @staticmethod
    @abc.abstractmethod
    def cost(devices: int, nbytes: int) -> Cost:
        """Return the cost of an `allreduce` for the busiest device.

        Args:
            devices: Int. Number of devices.
            nbytes: Int. The size of the vector, a multiple of `devices`.
        """

    @abc.abstractmethod
    def reduce(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return each owner's part of the sum of `vectors`, one from each device."""

    @abc.abstractmethod
    def gather(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return, for each device, the vector made of the owners' parts."""

    def allreduce(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return, for each device, the sum of `vectors`, one from each device."""
        return self.gather(self.reduce(vectors))

    def sum(self, vectors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the sum of `vectors` on the first device."""
        with tf.device(self.devices[0]):
            return joined(self.reduce(vectors))

    def _parts(self, vectors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """Return each device's vector, split into one part per owner, of nearly equal length."""
        count, length = len(self.owners), vectors[0].shape[0]
        edges = [length * owner // count for owner in range(count + 1)]
        sizes = [stop - start for start, stop in zip(edges, edges[1:], strict=False)]
        cut = []
        for device, vector in zip(self.devices, vectors, strict=True):
            with tf.device(device):
                cut.append(tf.split(vector, sizes))
        return cut


def joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the concatenation of `parts`."""
    return tf.concat(parts, 0) if len(parts) > 1 else tf.identity(parts[0])
