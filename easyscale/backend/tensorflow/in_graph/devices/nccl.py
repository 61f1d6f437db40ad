"""NCCL between the GPUs of one process."""

from collections.abc import Sequence

import tensorflow as tf

from easyscale.backend.tensorflow.in_graph.device_exchange import DeviceExchange
from easyscale.exchange import Cost, Exchange

__all__ = ["Nccl"]


class Nccl(DeviceExchange):
    """Sum over GPUs with NVIDIA's library, called by TensorFlow. All devices must be GPUs.

    NCCL chooses rings or trees: about `2 * S * (D - 1) / D` bytes for each of `D` devices.
    """

    only_on_gpus = True

    def __init__(self, devices: Sequence[str], between: Exchange | None = None):
        super().__init__(devices, between)
        self.owners = self.devices[:1]
        self._calls = 0

    @staticmethod
    def cost(devices: int, nbytes: int) -> Cost:
        steps = 2 * (devices - 1)
        return Cost(steps, steps, steps * nbytes // devices)

    def reduce(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self.allreduce(vectors)[:1]

    def gather(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        wholes = []
        for device in self.devices:
            with tf.device(device):
                wholes.append(tf.identity(parts[0]))
        return wholes

    def allreduce(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._calls += 1
        sums = []
        for device, vector in zip(self.devices, vectors, strict=True):
            with tf.device(device):
                options = {"num_devices": len(self.devices), "shared_name": f"easyscale_{self._calls}"}
                sums.append(tf.raw_ops.NcclAllReduce(input=vector, reduction="sum", **options))
        return sums
